"""torchrun, but it ends with the exit code of the rank that failed first, where torchrun itself always ends with 1.

    python -m launch.processes.torchrun TORCHRUN-ARGUMENTS...

The code decides whether the learner is started again: 2 is wrong input, 128 + n the end by signal n.
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun


def main(arguments: list[str]) -> int:
    try:
        torchrun(arguments)
    except ChildFailedError as failed:
        sys.stderr.write(f"ChildFailedError: {failed}\n")
        _, first = failed.get_first_failure()
        code = int(first.exitcode)
        return code if code >= 0 else 128 - code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
