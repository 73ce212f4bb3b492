from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launch.config.check import load_checked
from launch.config.rules import Machine
from schemas.config.file import build
from schemas.config.file import load_config as read
from tests.fakes.records.runs import raw_config
from tests.paths import ROOT

SHIPPED = sorted((ROOT / "launch" / "configs").glob("*.yaml"))
BLOCKED = ("torch", "vllm", "megatron")


def test_the_resolved_config_round_trips(tmp_path: Path) -> None:
    made = build(raw_config(grpo__max_num_steps=7, learner={"optimizer": {"lr": 1e-7}}, generation__stop=["\n", "é"]))
    path = tmp_path / "config.yaml"
    path.write_text(made.to_yaml(), encoding="utf-8")
    assert read(path) == made
    assert read(path).to_yaml() == made.to_yaml()


def test_a_dump_holds_references_and_never_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_TEST_PASSWORD", "hunter2")
    security = {"protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "username": "u", "password": "env:WEIR_TEST_PASSWORD"}
    text = build(raw_config(kafka={"security": security})).to_yaml()
    assert "hunter2" not in text
    assert yaml.safe_load(text)["kafka"]["security"]["password"] == "env:WEIR_TEST_PASSWORD"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_config_is_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    gpu = "gpu" in path.name or "nccl" in path.read_text()
    checked = load_checked(path, machine=Machine(gpu=gpu, bootstrap="broker:9092"))
    assert build(yaml.safe_load(checked.config.to_yaml())) == checked.config


def test_a_dry_run_works_with_torch_and_vllm_blocked(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(raw_config()))
    script = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None
from launch.__main__ import main
sys.exit(main([{str(path)!r}, "--dry-run", "grpo.max_num_steps=3"]))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["grpo"]["max_num_steps"] == 3
    assert "tiny-<start time>.trajectories.v00000000 to v00000002" in done.stdout


def test_wrong_input_is_reported_without_traceback_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from launch.__main__ import main

    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(raw_config(grpo__max_num_step=3)))
    assert main([str(path), "--dry-run"]) == 2
    shown = capsys.readouterr().err
    assert "grpo.max_num_step: unknown key; did you mean max_num_steps?" in shown
    assert "Traceback" not in shown
