"""Section `launch`: how the launcher supervises the processes that it starts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.config.base import Section


class RestartConfig(Section):
    """What is restarted when it dies. A death before the first join (a producer) or the first checkpoint (the learner) ends the
    run, and so does exit code 2, wrong input."""

    max_restarts: Annotated[int, Field(ge=0)] = 3
    """Restarts of the learner, from its newest checkpoint, without a further version trained; one more death ends the run. 0: no
    restart."""
    max_producer_restarts: Annotated[int, Field(ge=0)] = 5
    """Restarts of a producer within `window_s`; one more death ends the run. 0: no restart."""
    max_broker_restarts: Annotated[int, Field(ge=0)] = 5
    """The same for a local broker that was started on demand. Any other broker is waited for (`kafka.outage_timeout_s`)."""
    window_s: Annotated[float, Field(gt=0)] = 600.0
    """After this long a death of a producer or of the broker no longer counts, neither for the limit nor for the pause."""
    backoff_s: Annotated[float, Field(gt=0)] = 1.0
    """Pause before the first restart; it doubles with each further death that counts."""
    max_backoff_s: Annotated[float, Field(gt=0)] = 30.0
    """The longest pause."""


class LaunchConfig(Section):
    """How `launch/run_cluster.sh` supervises the processes that it starts."""

    learner_start_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """The run ends when the learner has not claimed it on the control topic within this time."""
    stop_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A process that was asked to end and has not ended within this time is killed."""
    restart: RestartConfig = Field(default_factory=RestartConfig)
