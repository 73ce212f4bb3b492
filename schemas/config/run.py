"""Section `run`: what a run is called and where its files go."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from schemas.config.base import RESUME, TRAINED, Section
from schemas.identity import LATEST


class ForkConfig(Section):
    """The checkpoint of another run that a run starts from."""

    run: str | None = None
    """Run whose checkpoint this run starts from: its id (in `run.dir`), its folder, or a dump; null: start from `model.path`."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Version of that checkpoint."""

    @model_validator(mode="after")
    def _both(self) -> ForkConfig:
        if (self.run is None) != (self.step is None):
            raise ValueError("run and step belong together; give both, or neither")
        return self


class RunConfig(Section):
    """What the run is called and where its files go."""

    name: str = Field("weir", pattern=r"^[a-z0-9-]{1,48}$")
    """Name of the run for people; `launch/run_cluster.sh` makes `id` from it."""
    id: str | None = Field(None, pattern=r"^[a-z0-9-]{1,64}$")
    """Prefix of the names of all topics of the run. Required when a process is started by hand. Not `latest`: that is the link to
    the newest run."""
    dir: Annotated[str, RESUME] = "runs"
    """Folder in which `<id>/` holds the run's config, logs, metrics and checkpoints."""
    seed: Annotated[int, Field(ge=0, lt=2**63), TRAINED] = 0
    """Seed of the draws of prompts and of the learner's random generators."""
    fork_from: ForkConfig = Field(default_factory=ForkConfig)

    @field_validator("id")
    @classmethod
    def _not_the_link(cls, run_id: str | None) -> str | None:
        if run_id == LATEST:
            raise ValueError(f"{LATEST} is the link to the newest run's folder, no run's own name")
        return run_id
