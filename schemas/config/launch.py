"""Section `launch`: how the launcher looks after the processes that it starts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.config.base import Section


class RestartConfig(Section):
    """What is started again when it dies. A death before the first join (a producer) or the first checkpoint (the learner)
    ends the run, and so does exit code 2, wrong input."""

    max_restarts: Annotated[int, Field(ge=0)] = 3
    """The learner is started again, from its newest checkpoint, so many times without a further version trained; then the run
    ends. 0: never."""
    max_producer_restarts: Annotated[int, Field(ge=0)] = 5
    """A producer is started again so many times within `window_s`; one more death ends the run. 0: the first one does."""
    max_broker_restarts: Annotated[int, Field(ge=0)] = 5
    """Likewise for a local broker that was started on demand. Any other broker is waited for (`kafka.outage_timeout_s`)."""
    window_s: Annotated[float, Field(gt=0)] = 600.0
    """After so long a death of a producer or of the broker counts no more, neither for the limit nor for the pause."""
    backoff_s: Annotated[float, Field(gt=0)] = 1.0
    """Pause before the first start; it doubles with each further death that counts."""
    max_backoff_s: Annotated[float, Field(gt=0)] = 30.0
    """The longest pause."""


class LaunchConfig(Section):
    """How `launch/run_cluster.sh` looks after the processes that it starts."""

    learner_start_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """The run ends when the learner has not claimed it on the control topic by then."""
    stop_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A process that was asked to end and has not by then is killed."""
    restart: RestartConfig = Field(default_factory=RestartConfig)
