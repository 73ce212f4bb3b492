"""Commands from rank 0 to the other ranks. Frozen facts, sent as JSON (`ranks.py`).

Invariant: every rank carries out the same commands in the same order. mypy (`assert_never`) finds the places where a new command
must be carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

# --- of a run and of a replay ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do: rank 0 shows that it lives."""

    do: Literal["idle"] = "idle"


@dataclass(frozen=True, slots=True)
class Train:
    """Train one version. `sizes`: bytes of each record that each rank gets, by rank; the records follow."""

    sizes: Sequence[Sequence[int]]
    do: Literal["train"] = "train"


@dataclass(frozen=True, slots=True)
class GatherWeights:
    """Gather the weights on rank 0, which sends them or only takes their digest."""

    do: Literal["gather_weights"] = "gather_weights"


@dataclass(frozen=True, slots=True)
class DigestState:
    """Compute the digest of the state: weights, moments, steps, and the position in the schedule."""

    do: Literal["digest_state"] = "digest_state"


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Copy or write the state of `version`."""

    version: int
    incarnation: int
    do: Literal["begin_checkpoint"] = "begin_checkpoint"


@dataclass(frozen=True, slots=True)
class FinishCheckpoint:
    """All files of the checkpoint that was begun are written: complete it."""

    do: Literal["finish_checkpoint"] = "finish_checkpoint"


@dataclass(frozen=True, slots=True)
class ExportModel:
    """Write the weights of `version` as a Hugging Face checkpoint."""

    version: int
    do: Literal["export_model"] = "export_model"


@dataclass(frozen=True, slots=True)
class EndRank:
    """End with this exit code."""

    code: int
    do: Literal["end_rank"] = "end_rank"


# --- of a replay only -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScoreGroup:
    """Compute the log-probabilities of one group; its record of `size` bytes follows."""

    size: int
    do: Literal["score_group"] = "score_group"


@dataclass(frozen=True, slots=True)
class ChangeConfig:
    """Switch to the changed config. The state is kept, by way of a checkpoint in `folder`."""

    folder: str
    do: Literal["change_config"] = "change_config"


TrainingCommand = Idle | Train | GatherWeights | DigestState | BeginCheckpoint | FinishCheckpoint | ExportModel
ReplayCommand = ScoreGroup | ChangeConfig
Command = Annotated[TrainingCommand | ReplayCommand | EndRank, Field(discriminator="do")]
_ADAPTER: TypeAdapter[TrainingCommand | ReplayCommand | EndRank] = TypeAdapter(Command)


def encode(command: TrainingCommand | ReplayCommand | EndRank) -> bytes:
    """The command as JSON."""
    return _ADAPTER.dump_json(command)


def decode(value: bytes) -> TrainingCommand | ReplayCommand | EndRank:
    """The command in `value`, as `encode` wrote it.

    Raises:
        pydantic.ValidationError: the other rank runs another version of this program.
    """
    return _ADAPTER.validate_json(value)
