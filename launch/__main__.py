"""launch/run_cluster.sh [CONFIG] [--dry-run] [--resume [RUN] [--accept-loss]] [key=value ...]

Runs everything on this machine: the broker unless one is configured, the learner, the producers, a live view.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from launch.exit_codes import FAILED, FINISHED, INTERRUPTED, WRONG_INPUT
from schemas.errors import ConfigError, Problem, WeirError

DEFAULT_CONFIG = "launch/configs/tiny.yaml"
EXIT_CODES = "exit codes: 0 finished, 1 failed, 2 wrong input, 130 interrupted"


def parse_arguments(argv: list[str]) -> tuple[str | None, list[str], argparse.Namespace]:
    """(config file or None, overrides, options).

    Raises:
        ConfigError: two config files, or one together with `--resume`.
    """
    parser = argparse.ArgumentParser(
        prog="launch/run_cluster.sh",
        description="Train on this machine: start the Kafka broker unless one is configured, the learner and the producers, show "
        "what they do, and leave nothing running.",
        epilog=f"{EXIT_CODES}. Ctrl-C ends the run in order; a second Ctrl-C ends it at once.",
    )
    parser.add_argument("config", nargs="?", help=f"a run's YAML file; {DEFAULT_CONFIG} by default")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="override a key, for example grpo.max_num_steps=10")
    parser.add_argument(
        "--dry-run", action="store_true", help="check the config, print it with all defaults, print the topics; start nothing"
    )
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="resume a run (its id or folder); by default the latest"
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="with --resume: name what the broker has lost, then generate and train it again",
    )
    given = parser.parse_intermixed_args(argv)
    words = [word for word in (given.config, *given.overrides) if word is not None]
    if given.resume is not None and "=" in given.resume:
        words.append(given.resume)
        given.resume = ""
    if given.accept_loss and given.resume is None:
        raise ConfigError([Problem("--accept-loss", None, "a new run has nothing to lose", "give it together with --resume")])
    overrides = [word for word in words if "=" in word]
    files = [word for word in words if "=" not in word]
    if len(files) > 1 or (files and given.resume is not None):
        why = "one config file at most" if given.resume is None else "a resumed run has its own config.yaml"
        raise ConfigError([Problem(files[-1], None, why, "see --help")])
    return (files[0] if files else None), overrides, given


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 finished, 1 failed, 2 wrong input, 130 interrupted."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
        return WRONG_INPUT
    except WeirError as error:
        sys.stderr.write(f"error: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


def _run(argv: list[str]) -> int:
    config, overrides, given = parse_arguments(argv)
    from broker_config import logs
    from launch.config.check import load_checked

    logs.configure("WARNING")
    if given.resume is not None:
        from launch.config.resume import load_resumed

        _, checked = load_resumed(given.resume or None, overrides)
    else:
        checked = load_checked(config or DEFAULT_CONFIG, overrides)
    if given.dry_run:
        from launch.config.dry_run import describe_dry_run

        sys.stdout.write(describe_dry_run(checked.config))
        sys.stderr.write("".join(f"warning: {warning}\n" for warning in checked.warnings))
        return FINISHED

    from rich.console import Console

    from launch.run import LaunchOptions, launch_run

    Path(checked.config.run.dir).mkdir(parents=True, exist_ok=True)
    return launch_run(LaunchOptions(checked, resume=given.resume is not None, accept_loss=given.accept_loss), Console())


if __name__ == "__main__":
    sys.exit(main())
