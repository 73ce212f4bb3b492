"""All that the dispatcher knows of its run, in named parts. Deciders read and change it; nobody else keeps any of it.

Invariants (`validate`): the slots and the roster agree on who has which request; open versions lie between the frontier and the
frontier + A, and above what is sealed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from learner.dispatcher.state.counters import Counters
from learner.dispatcher.state.draw_outcomes import DrawOutcomes
from learner.dispatcher.state.plan import Plan
from learner.dispatcher.state.roster import Roster
from learner.dispatcher.state.rounds import RefitRound
from learner.dispatcher.state.slots import Kind, Limits, SlotTable
from schemas.draws import last_version
from schemas.records.control import DatasetFacts, State, Stop
from schemas.records.seal import Seal

CALM_STEPS = 20  # steps without a wait after which `lead` falls by one


@dataclass(slots=True)
class Clock:
    """The newest beat, and the beats of what deadlines are counted from."""

    beat: int = 0
    learner_ready: int = 0
    """When rank 0 had its model."""
    progress: int = 0
    """When the run last got on: a group, a trained version, an announcement."""
    producer: int = 0
    """When there last was a producer."""


@dataclass(slots=True)
class LearnerSide:
    """Rank 0, as its questions show it."""

    ready: bool = False
    asked: bool = False
    """It waits for the answer to `NextQuestion`."""
    finishing: bool = False
    """It was given `FinishRun`."""


@dataclass(slots=True)
class Takeover:
    """What an earlier incarnation left to the present one."""

    awaited: set[str]
    """Members of the last state that have not reported to this incarnation yet."""
    settled: bool
    """All has been read that those members had in hand or had published; nothing is issued before."""


@dataclass(slots=True)
class VersionTopicIds:
    """Topics of versions: those that exist, by id, and those that are being made."""

    ids: dict[tuple[Kind, int], str] = field(default_factory=dict)
    making: set[tuple[Kind, int]] = field(default_factory=set)


@dataclass(slots=True)
class Seals:
    """Batches of versions from the one on that is trained next: written by this incarnation, and read from the log."""

    written: set[int] = field(default_factory=set)
    read: dict[int, tuple[Seal, int]] = field(default_factory=dict)
    """With the seal's offset."""


@dataclass(slots=True)
class Lead:
    """How many versions above the frontier are opened: more when the learner had to wait, fewer after a calm time."""

    highest: int
    value: int
    calm: int = 0
    """Steps since the learner last waited."""

    def trained(self, waited: bool) -> None:
        self.calm = 0 if waited else self.calm + 1
        if waited and self.value < self.highest:
            self.value += 1
        elif self.calm >= CALM_STEPS and self.value > min(1, self.highest):
            self.value -= 1
            self.calm = 0


@dataclass(slots=True)
class RunningValidation:
    """The validation that is due or running: at most one version at a time."""

    version: int | None = None
    count: int = 0
    """Prompts of it."""
    opened_beat: int | None = None
    done: set[int] = field(default_factory=set)


class RunState:
    """`version` is the one that is trained next; `frontier` the highest whose weights were announced, None before the first."""

    def __init__(self, plan: Plan, version: int, inherited: State | None) -> None:
        grpo = plan.grpo
        self.plan = plan
        self.version = version
        self.frontier = inherited.frontier if inherited else None
        self.weights_digest = inherited.weights_digest if inherited else None
        self.sealed_through = max(version - 1, inherited.sealed_through if inherited else -1)
        self.dataset: DatasetFacts | None = inherited.dataset if inherited else None
        self.digests = dict(plan.digests)
        """Of the model files and the environment, which every producer must have too."""
        self.window: dict[int, str] = {}
        """Open versions of rollouts, with the ids of their topics."""
        self.stop: Stop | None = None
        self.clock = Clock()
        self.learner = LearnerSide()
        awaited = set(inherited.members) if inherited else set[str]()
        self.takeover = Takeover(awaited, settled=not awaited)
        self.topics = VersionTopicIds()
        self.seals = Seals()
        self.slots = SlotTable(
            grpo.num_prompts_per_step, Limits(plan.dispatch.max_attempts, plan.dispatch.max_draws, plan.dispatch.max_lost)
        )
        self.roster = Roster(plan.request_partitions)
        if inherited is not None:
            self.roster.draining |= {name for name, member in inherited.members.items() if member.draining}
        self.round: RefitRound | None = None
        self.rounds = 0
        """Rounds of this incarnation so far."""
        self.validation = RunningValidation()
        self.lead = Lead(highest=grpo.max_trajectory_age_steps, value=min(1, grpo.max_trajectory_age_steps))
        self.counters = Counters()
        self.draw_outcomes = DrawOutcomes(4 * grpo.num_prompts_per_step)

    @property
    def last_version(self) -> int | None:
        """Versions that the run trains; None until the size of the data is known."""
        if self.dataset is None:
            return None
        grpo = self.plan.grpo
        return last_version(grpo.max_num_steps, grpo.max_num_epochs, self.dataset.rows, grpo.num_prompts_per_step)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        self.slots.validate()
        self.roster.validate()
        age = self.plan.grpo.max_trajectory_age_steps
        for version in self.window:
            assert self.frontier is not None and self.frontier <= version <= self.frontier + age, (version, self.frontier)
            assert version > self.sealed_through
        held = {
            (name, slot.kind, key)
            for slots in self.slots.open_versions.values()
            for slot in slots.slots
            for name, key in slot.holders.items()
        }
        assigned = {(p.name, *work) for p in self.roster.producers.values() for work in p.assigned}
        assert held == assigned, (held - assigned, assigned - held)
