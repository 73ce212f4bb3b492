"""Stops the local broker when the supervisor was killed and could not.

    python -m launch.processes.keeper --parent PID --patience SECONDS

Does nothing but wait for the end of PID; then waits for the run's processes to end, and stops the broker if it was started on
demand and nobody else uses it. SIGKILL, by the supervisor that did the work itself, is its normal end.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from launch.processes.guard import die_with_parent

WATCH_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m launch.processes.keeper", description="Stop the local broker when a run's supervisor dies."
    )
    parser.add_argument("--parent", type=int, required=True, help="process whose end is waited for")
    parser.add_argument("--patience", type=float, required=True, help="seconds that the run's processes have to end")
    given = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    die_with_parent(signal.SIGTERM)
    while os.getppid() == given.parent and signal.sigtimedwait({signal.SIGTERM}, WATCH_S) is None:
        pass

    # Only now: this process is as small as it can be while the run goes on.
    from broker_config.deadline import Deadline
    from broker_config.local.broker import LocalBroker
    from launch.processes.broker import release

    return 0 if release(LocalBroker(), Deadline(given.patience)) else 1


if __name__ == "__main__":
    sys.exit(main())
