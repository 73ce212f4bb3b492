"""Stops the local broker when the supervisor was killed and cannot do it itself.

    python -m launch.processes.keeper --parent PID --patience SECONDS

Waits for the end of PID, then for the run's processes to end, and stops the broker if it was started on demand and nobody else
uses it. Its normal end is SIGKILL, from a supervisor that has done the work itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from broker_config.lifeline import die_with_parent

WATCH_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m launch.processes.keeper", description="Stop the local broker when the supervisor of a run dies."
    )
    parser.add_argument("--parent", type=int, required=True, help="the process to wait for")
    parser.add_argument("--patience", type=float, required=True, help="seconds to wait for the processes of the run to end")
    given = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    die_with_parent(signal.SIGTERM)
    while os.getppid() == given.parent and signal.sigtimedwait({signal.SIGTERM}, WATCH_S) is None:
        pass

    # Imported only now: while the run lasts, this process is as small as it can be.
    from broker_config.deadline import Deadline
    from broker_config.local.broker import LocalBroker
    from launch.processes.broker import release

    return 0 if release(LocalBroker(), Deadline(given.patience)) else 1


if __name__ == "__main__":
    sys.exit(main())
