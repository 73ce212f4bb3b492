"""The control state: all that holds, as everybody reads it on `control`.

Invariant: a `State` is made of an `Announcement` and the plan, and of nothing else; so two equal announcements are the same
state, and whether the state has changed is whether the announcement has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from learner.dispatcher.state.plan import Plan
from learner.dispatcher.state.rounds import RoundFacts
from learner.dispatcher.state.run_state import RunState
from schemas.records import control
from schemas.records.control import DatasetFacts, Member, State, Stop


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the control state says of the moment it was taken; cheap to take and to compare. Mappings in it are never changed."""

    frontier: int | None
    weights_digest: str | None
    sealed_through: int
    last_version: int | None
    window: tuple[tuple[int, str], ...]
    validation: tuple[int, str] | None
    """The version that is being validated, with the id of its topic."""
    dataset: DatasetFacts | None
    members: Mapping[str, Member]
    refused: Mapping[str, list[str]]
    round: RoundFacts | None
    stop: Stop | None

    @classmethod
    def of(cls, s: RunState) -> Announcement:
        """Of the present moment."""
        version = s.validation.version
        topic = s.topics.ids.get(("validation", version)) if version is not None else None
        return cls(
            frontier=s.frontier,
            weights_digest=s.weights_digest,
            sealed_through=s.sealed_through,
            last_version=s.last_version,
            window=tuple(sorted(s.window.items())),
            validation=(version, topic) if version is not None and topic is not None else None,
            dataset=s.dataset,
            members=s.roster.members.present,
            refused=s.roster.members.refused,
            round=s.round.facts() if s.round is not None else None,
            stop=s.stop,
        )

    def to_state(self, plan: Plan) -> State:
        """The record that says so."""
        return State(
            uuid=plan.uuid,
            incarnation=plan.incarnation,
            config_digest=plan.config_digest,
            frontier=self.frontier,
            weights_digest=self.weights_digest,
            sealed_through=self.sealed_through,
            last_version=self.last_version,
            window=dict(self.window),
            validations=dict([self.validation]) if self.validation is not None else {},
            dataset=self.dataset,
            members=dict(sorted(self.members.items())),
            refused=dict(self.refused),
            round=_round(self.round) if self.round is not None else None,
            stop=self.stop,
        )


class StateChanges:
    """Compares what holds with what was taken last. The first time there is always something to take."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._taken: Announcement | None = None

    def pending(self) -> bool:
        """Whether the state is another than the one that was taken last. Asked after every event, so it is cheap."""
        return Announcement.of(self._state) != self._taken

    def take(self) -> State | None:
        """The state to be written; None if it is the one that was taken last."""
        announcement = Announcement.of(self._state)
        if announcement == self._taken:
            return None
        self._taken = announcement
        return announcement.to_state(self._state.plan)

    def forget(self) -> None:
        """Somebody wrote over what was taken last: it is to be written again."""
        self._taken = None


def _round(facts: RoundFacts) -> control.Round:
    return control.Round(
        number=facts.number,
        version=facts.version,
        mode="drain" if facts.mode == "drain" else "keep",
        phase="transfer" if facts.transferring else "pause",
        members=list(facts.members),
        groups=list(facts.groups),
    )
