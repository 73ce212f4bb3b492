"""Kills everything of a run at random moments, and counts what became of its groups.

    .venv/bin/python -m tests.chaos [--kills 20] [--seed 1] [--keep FOLDER]

Broker, learner and producers get SIGKILL together; then all of them are started again. The last line is the ledger: groups that
were acknowledged to their producers, sealed, trained, lost, and trained or told twice. Exit code 0: none lost, none twice, and a
replay of the whole run from its first checkpoint gives every recorded state.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.striking.kill_all import live_and_die
from tests.fakes.nursery import Nursery
from tests.pipeline import environment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--keep", type=Path, help="a new folder for everything that the run leaves")
    args = parser.parse_args()
    nursery = Nursery(environment(""))
    try:
        with tempfile.TemporaryDirectory(prefix="weir-chaos-") as made:
            books = live_and_die(args.keep or Path(made), nursery, args.kills, args.seed, print)
    finally:
        nursery.close()
    for line in books.wrong:
        print(line)
    print(books.ledger.line)
    return 1 if books.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
