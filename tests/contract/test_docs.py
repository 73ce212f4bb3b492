"""The docs say what the code does: every key, every field of every record, every example and every link."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from learner.checkpoint.manifest import Manifest
from schemas.config.config import key_paths
from schemas.errors import RecordRefused
from schemas.identity import seal_key
from schemas.records import control, group, headers, seal, status
from schemas.records.group import FinishReason, Span, TrajectoryGroup
from schemas.records.json_record import JsonRecord
from schemas.records.metrics import StepMetrics
from schemas.records.quarantine import Quarantined
from schemas.records.requests import Request, SamplingParameters
from schemas.records.seal import Seal, SealedSlot
from tests.docs.config_table import PAGE as CONFIGURATION
from tests.docs.config_table import page_with, tables
from tests.fakes.records.groups import make_group, make_trajectory
from tests.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
RECORDS = (ROOT / "docs" / "topics_and_records.md").read_text(encoding="utf-8")
PACKAGES = ("schemas", "broker_config", "producer", "learner", "launch")
JSON_EXAMPLES = re.findall(r"^```json\n(.*?)\n```$", RECORDS, re.MULTILINE | re.DOTALL)
DECODERS = {
    control.SCHEMA: control.decode,
    status.SCHEMA: status.decode,
    "weir.request/1": Request.from_bytes,
    "weir.metrics/1": StepMetrics.from_bytes,
    "weir.quarantine/1": Quarantined.from_bytes,
}
RECORD_MODELS: tuple[type[JsonRecord], ...] = (
    control.Claim,
    control.State,
    control.Round,
    control.TransferGroup,
    control.Member,
    control.Stop,
    control.DatasetFacts,
    status.Report,
    status.Heartbeat,
    status.Ack,
    status.Failed,
    status.Left,
    status.Beat,
    status.Operator,
    status.InHand,
    Request,
    SamplingParameters,
    StepMetrics,
    Quarantined,
)
UUID = "c23d3ade542340d6b123dc873cf5537a"


def test_the_tables_of_all_keys_are_those_of_the_sections() -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    assert text == page_with(text, tables()), "write them with: python -m tests.docs.config_table --write"


def test_every_key_stands_in_the_configuration_page() -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    assert [key for key in key_paths() if f"| `{key}` |" not in text] == []


def test_the_defaults_in_the_readme_are_those_of_the_sections() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (\S+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    made = tables()
    assert len(rows) > 10
    assert [(key, shown) for key, shown in rows if not re.search(rf"^\| `{key}` \| .* \| `{shown}` \|", made, re.MULTILINE)] == []


def test_keys_named_in_any_page_exist() -> None:
    sections = {key.partition(".")[0] for key in key_paths()}
    inner = {key.rpartition(".")[0] for key in key_paths()}
    named = {
        (page.name, word)
        for page in PAGES
        for word in re.findall(r"`([a-z_]+\.[a-z0-9_.]+)`", page.read_text(encoding="utf-8"))
        if word.partition(".")[0] in sections and not word.endswith((".py", ".md", ".yaml", ".json"))
    }
    assert named, "no page names any key"
    assert sorted((page, word) for page, word in named if word not in {*key_paths(), *inner}) == []


@pytest.mark.parametrize("example", JSON_EXAMPLES, ids=lambda text: json.loads(text).get("kind", "record"))
def test_an_example_is_a_record_as_it_is_written(example: str) -> None:
    shown = json.loads(example)
    record: BaseModel = DECODERS[shown["schema"]](example.encode())
    assert json.loads(record.model_dump_json(by_alias=True)) == shown


def test_there_is_an_example_of_every_kind_of_json_record() -> None:
    kinds = {(json.loads(text)["schema"], json.loads(text).get("kind")) for text in JSON_EXAMPLES}
    wanted: set[tuple[str, Any]] = {("weir.metrics/1", None), ("weir.quarantine/1", None), ("weir.request/1", "rollout")}
    wanted |= {(control.SCHEMA, kind) for kind in ("claim", "state")}
    wanted |= {(status.SCHEMA, kind) for kind in ("report", "heartbeat", "ack", "failed", "left", "beat", "operator")}
    assert wanted - kinds == set()


@pytest.mark.parametrize("model", RECORD_MODELS, ids=lambda model: model.__name__)
def test_every_field_of_a_record_is_described(model: type[JsonRecord]) -> None:
    named = set(re.findall(r"`(?:groups\[\]\.)?([A-Za-z_0-9]+)`", RECORDS))
    fields = {field.alias or name for name, field in model.model_fields.items()}
    assert fields - named == set()


def test_every_reason_to_refuse_a_group_is_described() -> None:
    source = (ROOT / "schemas" / "records" / "validity.py").read_text(encoding="utf-8") + (
        ROOT / "schemas" / "records" / "group.py"
    ).read_text(encoding="utf-8")
    reasons = set(re.findall(r'RecordRefused\(\s*"([a-z]+)"', source))
    assert "logprobs" in reasons
    assert {reason for reason in reasons if f"`{reason}`" not in RECORDS} == set()


def _example_group() -> TrajectoryGroup:
    """The group that the page shows."""
    first = make_trajectory(
        tokens=[8, 6, 4, 9, 1],
        logprobs=[-0.25, -0.5, -1.0, -0.125, -0.0625],
        spans=(Span(11, 0, 3), Span(12, 3, 5)),
        rewards={"digits": 0.75},
    )
    second = make_trajectory(
        11,
        tokens=[8, 6, 4, 9, 7],
        logprobs=[-0.25, -0.5, -1.0, -0.125, -2.0],
        finish=FinishReason.LENGTH,
        rewards={"digits": 0.5},
    )
    return make_group(
        12,
        3,
        run=UUID,
        row=195,
        incarnation=0,
        min_version=11,
        producer="producer-0-4e232133",
        prompt=[3, 5, 8, 4, 7, 12],
        sampling={"n": 2, "max_new_tokens": 5, "temperature": 1.0, "top_p": 1.0},
        trajectories=(first, second),
        seconds=0.11,
    )


def _console_line(found: headers.Headers, key: str) -> str:
    """As Kafka's console consumer prints headers and key."""
    return ",".join(f"{name}:{value.decode()}" for name, value in found) + "\t" + key


def test_the_example_group_is_encoded_as_the_page_shows() -> None:
    example = _example_group()
    value = group.encode(example)
    assert _console_line(headers.of_group(example, value), str(example.request)) in RECORDS
    for name in group.unpack(value, group.SCHEMA):
        assert re.search(rf"^{name}\b", RECORDS, re.MULTILINE), name
    assert group.prompt_sha256(example.prompt) in RECORDS
    for t in example.trajectories:
        for array, form in ((t.tokens, "<u4"), (t.mask, "|u1"), (t.logprobs, "<f4")):
            assert f"{form} [{len(array)}]  {' '.join(map(str, array.tolist()))}" in RECORDS


def test_the_example_seal_is_encoded_as_the_page_shows() -> None:
    slots = {0: SealedSlot(0, 0, 0, 0, "45" * 32, "37" * 32), 1: SealedSlot(0, 1, 0, 5, "76" * 32, "4e" * 32)}
    example = Seal(UUID, 0, "6179afb4801ce440", 12, slots)
    value = seal.encode(example)
    assert _console_line(headers.of_seal(example, value), seal_key(12)) in RECORDS
    with pytest.raises(RecordRefused):
        seal.decode(value, run=UUID, version=13, prompts_per_step=2)


def test_every_field_of_the_manifest_is_described() -> None:
    text = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    assert [name for name in Manifest.model_fields if f"`{name}`" not in text] == []


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(_anchor, headings), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_a_page_exist(page: Path) -> None:
    tops = "broker_config|docs|examples|launch|learner|producer|requirements|schemas|tests"
    named = re.findall(rf"`((?:{tops})/[A-Za-z0-9_./-]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_room_is_on_the_map() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [file.parent.relative_to(ROOT) for package in PACKAGES for file in (ROOT / package).rglob("__init__.py")]
    assert len(rooms) > 30
    assert [str(room) for room in rooms if f"| `{room}/` |" not in text] == []


def test_every_page_is_linked_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"](docs/{page.name})" not in text] == []
