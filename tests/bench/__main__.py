"""Speed and memory of one tiny run, each figure as a ratio or a distribution within the run.

    .venv/bin/python -m tests.bench [--steps 80] [--out FILE] [key=value ...]

Prints: time to the first step and of the whole run, learner idle share, tokens/s against bare vLLM on the same requests, publish
latency (published -> consumable) of the run's own records, refit pause, bytes a group, resident memory by process group.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.bare_vllm import tokens_per_s
from tests.bench.figures import tell
from tests.bench.latency import publish_latency_ms
from tests.bench.run_log import RunLog
from tests.bench.tiny_run import TinyRun


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--config", default="launch/configs/tiny.yaml")
    parser.add_argument("--out", type=Path, help="write the figures as JSON here too")
    parser.add_argument("overrides", nargs="*", help="key=value, as for launch/run_cluster.sh")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        run = TinyRun(Path(folder), args.config, [f"grpo.max_num_steps={args.steps}", *args.overrides])
        run.run()
        with run.broker() as bootstrap:
            log = RunLog(bootstrap, run.run_id)
            figures = {**run.figures(), **log.figures()}
            figures |= publish_latency_ms(bootstrap, log.groups)
        bare = tokens_per_s(run.model, run.exported, log.decoded(), run.max_new_tokens)
    figures |= {"bare vLLM, tokens/s": bare, "tokens/s of the run / bare vLLM": figures["tokens/s of the run"] / bare}
    tell(figures, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
