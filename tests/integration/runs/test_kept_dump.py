"""A dump that an earlier version of this program wrote is loaded, and trains to the digests that were recorded then."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from learner.checkpoint import folders
from learner.checkpoint.manifest import determinism
from schemas.config.file import load_for_process
from tests.contract.test_kept_dump import DUMP, STEPS
from tests.pipeline import weir
from tests.support import new_id

pytestmark = pytest.mark.timeout(600)


def verdicts(out: str) -> list[str]:
    return re.findall(r"^step \d+  (\S+)", out, re.MULTILINE)


def expected() -> str:
    """Equal to the last bit where the arithmetic is that of the machine on which it was written, near it elsewhere."""
    manifest = folders.read(folders.step_folder(DUMP / "checkpoints", 0))
    here = determinism(load_for_process(DUMP / "config.yaml", []).learner)
    return "equal" if manifest.determinism == here else "agrees"


@pytest.mark.nightly
def test_its_steps_come_out_as_they_were_recorded() -> None:
    out = weir("127.0.0.1:1", "replay", "--from", DUMP, "--step", STEPS[0], "--to", STEPS[-1]).stdout
    assert verdicts(out) == [expected()] * len(STEPS)


def test_loaded_on_a_broker_they_do_too(own_broker: Callable[..., LocalBroker], tmp_path: Path) -> None:
    bootstrap = own_broker().start(Deadline(120))
    run_id = new_id()
    weir(bootstrap, "load", DUMP, "--run", run_id, f"run.dir={tmp_path}")
    out = weir(bootstrap, "replay", "--run", tmp_path / run_id, "--step", STEPS[0], "--to", STEPS[-1]).stdout
    assert verdicts(out) == [expected()] * len(STEPS)
