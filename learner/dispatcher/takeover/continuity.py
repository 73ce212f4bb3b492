"""Whether the broker still has all that a learner needs to resume from a checkpoint. No I/O.

Needed are: the records of control and status up to where the checkpoint stood; the topics that the checkpoint or the last state
names, unchanged; and every sealed batch from the checkpoint's version on: its seal and all records that it names. Whether a
record's bytes are the sealed ones is checked when it is trained. Nothing below the checkpoint's version is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker_config.clients.admin import LogBounds, Partition, TopicInfo
from broker_config.topics import Topics
from broker_config.topics import parse as parse_topic
from learner.checkpoint.manifest import Manifest
from schemas.errors import LostData
from schemas.records.control import State
from schemas.records.seal import Seal


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing that is missing or was replaced. `version`: the target version that cannot be trained as it was, if any."""

    text: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the broker has.

    `topics`: by name; `bounds`: by (topic, partition); `seals`: the first well-formed one by version, None where there is none;
    `digests`: sha256 (hex) of sealed records by (topic, partition, offset), None if they were not read.
    """

    topics: Mapping[str, TopicInfo]
    bounds: Mapping[Partition, LogBounds] = field(default_factory=dict)
    seals: Mapping[int, Seal | None] = field(default_factory=dict)
    digests: Mapping[tuple[str, int, int], str] | None = None


def lost_data(run_id: str, losses: Sequence[Loss], lost: int | None, where: str) -> LostData:
    """The error that names all losses and what can be done. `lost`: the lowest version that cannot be trained as it was."""
    again = "" if lost is None else f"; versions from {lost} on are then generated and trained anew, in topics of the same names"
    lines = [
        f"data of run {run_id} is lost on the broker at {where}; nothing was changed:",
        *(f"  {loss.text}" for loss in losses),
        "restore it, name the broker that has it (kafka.bootstrap_servers), or resume without it by --resume --accept-loss"
        + again,
    ]
    return LostData("\n".join(lines))


def first_lost(losses: Sequence[Loss]) -> int | None:
    """The lowest lost version, or None."""
    return min((loss.version for loss in losses if loss.version is not None), default=None)


def sealed_versions(manifest: Manifest, state: State | None) -> range:
    """Versions that were trained or sealed after the checkpoint."""
    if state is None:
        return range(0)
    return range(manifest.version, max(state.sealed_through, (state.frontier or 0) - 1) + 1)


def known_topics(topics: Topics, manifest: Manifest, state: State | None) -> dict[str, str | None]:
    """Topics that must be there, and the id of each, None where it is not known."""
    once = (topics.control, topics.status, topics.requests, topics.metrics, topics.quarantine)
    needed: dict[str, str | None] = dict.fromkeys(once)
    needed |= {topics.trajectories(version): None for version in sealed_versions(manifest, state)}
    ids = dict(manifest.topic_ids)
    if state is not None:
        ids |= {topics.trajectories(version): topic_id for version, topic_id in state.window.items()}
    for name, topic_id in ids.items():
        parsed = parse_topic(name)
        if parsed is not None and (parsed.version is None or parsed.version >= manifest.version):
            needed[name] = topic_id
    return needed


def find_losses(topics: Topics, manifest: Manifest, state: State | None, found: Holdings) -> list[Loss]:
    """What is lost, lowest version first. Nothing more is reported about a topic that is gone."""
    losses = [loss for name, known in known_topics(topics, manifest, state).items() if (loss := _topic_loss(name, known, found))]
    losses += _log_losses(topics, manifest, found)
    gone = {loss.version for loss in losses}
    for version in sealed_versions(manifest, state):
        if version not in gone:
            losses += _batch_losses(topics.trajectories(version), version, found)
    return sorted(losses, key=lambda loss: -1 if loss.version is None else loss.version)


def _topic_loss(name: str, known: str | None, found: Holdings) -> Loss | None:
    parsed = parse_topic(name)
    version = None if parsed is None else parsed.version
    info = found.topics.get(name)
    if info is None:
        identity = f" (its id was {known})" if known else ""
        return Loss(f"topic {name} is gone{identity}", version)
    if known is not None and info.topic_id != known:
        return Loss(f"topic {name} was deleted and made again: its id is {info.topic_id}, the run's had {known}", version)
    return None


def _log_losses(topics: Topics, manifest: Manifest, found: Holdings) -> list[Loss]:
    offsets = manifest.next_offsets
    losses = []
    for name, offset in ((topics.control, offsets.control), (topics.status, offsets.status)):
        bounds = found.bounds.get((name, 0))
        if bounds is not None and not bounds.start <= offset <= bounds.end:
            kept = f"its log has offsets {bounds.start} to {bounds.end - 1}" if bounds.end > bounds.start else "its log is empty"
            losses.append(Loss(f"{name}[0] offset {offset}, where the checkpoint stood, is outside the log: {kept}"))
    return losses


def _batch_losses(topic: str, version: int, found: Holdings) -> list[Loss]:
    seal = found.seals.get(version)
    if seal is None:
        return [Loss(f"{topic}[0] has no seal of version {version}, which was sealed", version)]
    losses = []
    for slot, entry in sorted(seal.slots.items()):
        bounds = found.bounds.get((topic, entry.partition))
        where = f"{topic}[{entry.partition}] offset {entry.offset}, slot {slot} of the seal"
        if bounds is None or not bounds.start <= entry.offset < bounds.end:
            kept = "that partition is gone" if bounds is None else f"the log has offsets {bounds.start} to {bounds.end - 1}"
            losses.append(Loss(f"{where}, is lost: {kept}", version))
        elif found.digests is not None and found.digests.get((topic, entry.partition, entry.offset)) != entry.sha256:
            losses.append(Loss(f"{where}, is not the record that was sealed: its sha256 is another than {entry.sha256}", version))
    return losses
