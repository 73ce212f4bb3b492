"""How long a checkpoint holds training up, as a share of a step.

    .venv/bin/python -m tests.bench.saving [--steps 40] [--out FILE] [key=value ...]

Two tiny runs with real vLLM and a checkpoint after every step: written at once, and in the background. Every step is charged with
the checkpoint before it (`timing/train/checkpointing` / `timing/train/total_step_time`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from tests.bench.figures import tell
from tests.bench.tiny_run import TinyRun

EVERY_STEP = ("checkpointing.save_period=1", "checkpointing.keep=3", "checkpointing.hf_export_at_end=false")
NO_VALIDATION = ("grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=false")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.saving", description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--config", default="launch/configs/tiny.yaml")
    parser.add_argument("--out", type=Path, help="write the figures as JSON here too")
    parser.add_argument("overrides", nargs="*", help="key=value, as for launch/run_cluster.sh")
    args = parser.parse_args()
    figures: dict[str, float] = {}
    for name, background in (("at once", "false"), ("in the background", "true")):
        with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
            keys = [*EVERY_STEP, *NO_VALIDATION, f"checkpointing.async_save={background}", f"grpo.max_num_steps={args.steps}"]
            run = TinyRun(Path(folder), args.config, [*keys, *args.overrides])
            run.run()
            steps = run.steps()
        held = [step["timing/train/checkpointing"] for step in steps]
        whole = [step["timing/train/total_step_time"] for step in steps]
        figures |= {
            f"{name}: median step, s": statistics.median(whole),
            f"{name}: training held up, median s": statistics.median(held),
            f"{name}: training held up, share of all time": sum(held) / sum(whole),
        }
    tell(figures, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
