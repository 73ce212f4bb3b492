"""The tables of docs/configuration.md, made from the sections themselves: keys, values, defaults, units, docstrings.

    python -m tests.docs.config_table            print them
    python -m tests.docs.config_table --write    put them into the page

tests/contract/test_docs.py compares, so a key that is added or changed without its line is found.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from launch.config.file import ALL_SECTIONS
from launch.config.resume import changeable
from schemas.config.sections import AGREED_SECTIONS, LOCAL_KEYS, SECTIONS, Section

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN = "<!-- tables: made by `python -m tests.docs.config_table --write` -->"
END = "<!-- tables: end -->"

SUFFIX_UNITS = {"_s": "s", "_mib": "MiB", "_beats": "beats"}
UNITS = {
    "checkpointing.keep": "checkpoints",
    "checkpointing.save_period": "versions",
    "generation.max_new_tokens": "tokens",
    "grpo.max_num_epochs": "epochs",
    "grpo.max_num_steps": "versions",
    "grpo.max_trajectory_age_steps": "versions",
    "grpo.max_val_samples": "prompts",
    "grpo.num_generations_per_prompt": "trajectories",
    "grpo.num_prompts_per_step": "groups",
    "grpo.val_period": "versions",
    "learner.logprob_micro_batch_size": "trajectories",
    "learner.nproc": "processes",
    "learner.optimizer.lr_decay_steps": "versions",
    "learner.optimizer.lr_warmup_steps": "versions",
    "learner.train_global_batch_size": "trajectories",
    "learner.train_micro_batch_size": "trajectories",
    "model.max_total_sequence_length": "tokens",
    "producer.max_groups_in_flight": "groups",
    "refit.group_size": "producers",
    "refit.probe_limit": "nats",
}
# Keys whose name says it all in the code, and not quite all to somebody who reads a table.
MEANINGS = {
    "generation.max_new_tokens": "Generated tokens of a trajectory, at most; over all of its turns.",
    "generation.temperature": "Sampling temperature of rollouts.",
    "generation.top_p": "Nucleus sampling: the smallest set of tokens whose probabilities sum to this.",
    "generation.top_k": "Sample from so many most likely tokens; null: all.",
    "generation.stop": "Strings that end a completion.",
    "generation.stop_token_ids": "Token ids that end a completion, besides the model's own end tokens.",
    "kafka.replication_factor": "Copies of each partition.",
    "kafka.min_insync_replicas": "Copies that must have a record before it counts as written; 2 or more with several copies.",
    "kafka.compression": "Compression of what producers and learner write.",
    "kafka.security.protocol": "How clients connect.",
    "kafka.security.sasl_mechanism": "Login mechanism; needed by the SASL protocols.",
    "kafka.security.username": "Login name; needed by the SASL protocols.",
    "kafka.security.password": "`env:NAME` or `file:PATH`, never the password itself.",
    "kafka.security.ca_location": "PEM file of the CA that signed the broker's certificate; null: the system's.",
    "learner.tensor_model_parallel_size": "Processes that each matrix is split over.",
    "learner.pipeline_model_parallel_size": "Processes that the layers are split over.",
    "learner.optimizer.adam_beta1": "Decay of the first moment.",
    "learner.optimizer.adam_beta2": "Decay of the second moment.",
    "learner.optimizer.adam_eps": "Added to the root of the second moment.",
    "learner.optimizer.lr_decay_style": "Shape of the decay after the warm-up.",
    "logger.tensorboard": "Write TensorBoard files into the run's folder.",
    "logger.wandb": "Log to Weights & Biases; needs the package `wandb`.",
}


def tables() -> str:
    """One table a section, in the order of a run's file."""
    return "\n\n".join(_table(name, ALL_SECTIONS[name]) for name in SECTIONS)


def _table(name: str, section: type[Section]) -> str:
    intro = " ".join((inspect.getdoc(section) or "").split())
    head = [f"### {name}", "", intro, "", "| key | values | default | unit | meaning | |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(_line(key, field, meaning) for key, field, meaning in _fields(name, section))])


def _fields(prefix: str, section: type[Section]) -> Iterator[tuple[str, FieldInfo, str]]:
    meanings = _docstrings(section)
    for name, field in section.model_fields.items():
        key = f"{prefix}.{name}"
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _fields(key, inner)
            continue
        if name in meanings and key in MEANINGS:
            raise ValueError(f"{key} has a docstring: take it out of MEANINGS")
        if name not in meanings and key not in MEANINGS:
            raise ValueError(f"{key} has no docstring; give it one, or a meaning in {__file__}")
        yield key, field, meanings.get(name) or MEANINGS[key]


def _docstrings(section: type[Section]) -> dict[str, str]:
    """The string below each field, which Python itself does not keep."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[field.target.id] = " ".join(after.value.value.split())
    return found


def _line(key: str, field: FieldInfo, meaning: str) -> str:
    unit = UNITS.get(key) or next((unit for end, unit in SUFFIX_UNITS.items() if key.endswith(end)), "")
    cells = (f"`{key}`", _values(field), _default(field), unit, meaning, _marks(key))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "`{}`"
    if field.default is PydanticUndefined:
        return "required"
    return f"`{_yaml(field.default)}`"


def _yaml(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.1e}" if value and abs(value) < 1e-3 else str(value)  # YAML wants the dot
        case _:
            return str(value)


def _values(field: FieldInfo) -> str:
    words = [_type(field.annotation)]
    bounds = [bound for part in _metadata(field.annotation, field.metadata) for bound in _bounds(part)]
    return ", ".join([*words, *bounds])


def _metadata(annotation: Any, outer: list[Any]) -> list[Any]:
    """Bounds of the field itself, and those inside of `Annotated[...] | None`."""
    inner = [m for part in get_args(annotation) if get_origin(part) is Annotated for m in part.__metadata__]
    return [entry for m in [*outer, *inner] for entry in getattr(m, "metadata", [m])]


def _bounds(entry: Any) -> Iterator[str]:
    for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        bound = getattr(entry, name, None)
        if bound is not None:
            yield f"{sign} 2^63" if bound == 2**63 else f"{sign} {bound}"
    pattern = getattr(entry, "pattern", None)
    if pattern is not None:
        yield f"`{pattern}`"


def _type(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0])
    if origin is Literal:
        return ", ".join(f"`{_yaml(value)}`" for value in args)
    if origin in (Union, UnionType):
        return " or ".join(_type(part) for part in args)
    if origin is list:
        return f"list of {_type(args[0])}"
    if origin is dict or annotation is dict:
        return "mapping"
    if annotation is type(None):
        return "null"
    return {int: "int", float: "float", bool: "bool", str: "text"}.get(annotation, "text")


def _marks(key: str) -> str:
    agreed = key.partition(".")[0] in AGREED_SECTIONS and key not in LOCAL_KEYS
    return " ".join(mark for mark, holds in (("agreed", agreed), ("resume", changeable(key))) if holds)


def page_with(text: str, made: str) -> str:
    """The page with its tables replaced."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{PAGE} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main() -> None:
    if "--write" in sys.argv:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    else:
        print(tables())


if __name__ == "__main__":
    main()
