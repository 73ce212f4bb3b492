"""Resuming from a checkpoint: what is checked before the run is claimed, and what follows for the topics and the state.

Invariants: nothing on the broker or in the checkpoint is changed before the claim; without losses nothing is changed at all; with
accepted losses F and `sealed_through` fall to where the data is whole, later topics are made anew, and the checkpoint's manifest
gets the positions of the new logs, so that the same loss is not found again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from broker_config.topics import parse as parse_topic
from learner.checkpoint import folders
from learner.checkpoint.manifest import Manifest, Offsets
from learner.dispatcher.takeover.claim import Claimed, ControlLog
from learner.dispatcher.takeover.continuity import Loss, find_losses, first_lost, lost_data
from learner.dispatcher.takeover.log_positions import manifest_facts
from learner.dispatcher.takeover.survey import Survey
from schemas.config.config import Config
from schemas.errors import ConfigError, Problem
from schemas.records.control import State
from schemas.records.metrics import StepMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What `review` found.

    `control`: read to its end, None if the topic is gone; `lost_from`: the lowest version whose batch is lost, None without one.
    """

    folder: Path
    manifest: Manifest
    control: ControlLog | None
    losses: Sequence[Loss]
    lost_from: int | None


def review(config: Config, bootstrap: str, client: AdminClient, folder: Path, *, accept_loss: bool) -> Resumption:
    """Check everything that resuming from the checkpoint `folder` needs. Changes nothing.

    With `accept_loss` the bytes of sealed records are checked too; otherwise that is done when they are trained.

    Raises:
        LostData: some of it is lost, and that is not accepted.
        ConfigError: the checkpoint is another run's.
        WeirError: the checkpoint is damaged.
        BrokerError, DeadlineExceeded: the broker refuses, or does not answer in time.
    """
    manifest = folders.read(folder)
    topics = Topics(config.run_id)
    control = _open_control(config, bootstrap, client, topics)
    if control is not None and control.uuid not in (None, manifest.run):
        control.close()
        why = f"it is of another run, uuid {manifest.run}; {config.run_id} at {bootstrap} has uuid {control.uuid}"
        fix = "move the folder away, or name the broker that has its run (kafka.bootstrap_servers)"
        raise ConfigError([Problem("checkpoint", str(folder), why, fix)])
    state = control.state if control is not None else None
    survey = Survey(config, bootstrap, client, manifest, state)
    try:
        losses = find_losses(topics, manifest, state, survey.holdings(survey.recorded(), read_all=accept_loss))
    finally:
        survey.close()
    if control is not None and control.uuid is None:
        fork = "of a run that was loaded from a dump only replays and forks (run.fork_from) can be made"
        losses.insert(0, Loss(f"topic {topics.control} holds no record of the run; {fork}"))
    # With the control topic everything after the checkpoint is lost. Asked now: the claim will be a record of the run.
    lost_from = manifest.version if losses and (control is None or control.uuid is None) else first_lost(losses)
    if losses and not accept_loss:
        if control is not None:
            control.close()
        raise lost_data(config.run_id, losses, lost_from, bootstrap)
    return Resumption(folder, manifest, control, losses, lost_from)


def settle(found: Resumption, config: Config, client: AdminClient, claimed: Claimed) -> Claimed:
    """Carry out what follows from accepted losses, once the run is claimed. Returns the claim with the state to resume from.

    Raises:
        BrokerError, DeadlineExceeded: the broker refuses, or does not answer in time.
        OSError: the checkpoint's manifest cannot be written.
    """
    if not found.losses:
        return claimed
    for loss in found.losses:
        log.warning("accepted loss: %s", loss.text)
    deadline = Deadline(config.kafka.timeout_s)
    lost = found.lost_from
    if lost is not None:
        doomed = _later_topics(admin.topics_of_run(client, config.run_id, deadline), lost)
        admin.delete_topics(client, doomed, deadline)
        log.warning("versions from %d on are generated and trained anew; deleted, and their names used again: %s", lost, doomed)
        claimed = replace(claimed, state=_before_loss(claimed, config, lost))
    _anchor(found, config, client, claimed)
    return claimed


def recorded_now(
    config: Config, bootstrap: str, client: AdminClient, manifest: Manifest, state: State | None
) -> dict[int, StepMetrics]:
    """What was recorded of the steps that are trained again. Read after the claim: until then another learner may still train."""
    survey = Survey(config, bootstrap, client, manifest, state)
    try:
        return survey.recorded()
    finally:
        survey.close()


def _open_control(config: Config, bootstrap: str, client: AdminClient, topics: Topics) -> ControlLog | None:
    deadline = Deadline(config.kafka.timeout_s)
    if topics.control not in admin.describe(client, [topics.control], deadline):
        return None
    start = admin.log_bounds(client, [(topics.control, 0)], deadline)[topics.control, 0].start
    control = ControlLog(config.kafka, bootstrap, topics, start)
    control.read_to_end()
    return control


def _later_topics(names: Sequence[str], lost: int) -> list[str]:
    """Topics of trajectories from version `lost` on, and of validations of the weights that come out of them."""
    doomed = []
    for name in names:
        parsed = parse_topic(name)
        if parsed is None or parsed.version is None:
            continue
        if parsed.version > lost or (parsed.version == lost and parsed.kind == "trajectories"):
            doomed.append(name)
    return doomed


def _before_loss(claimed: Claimed, config: Config, lost: int) -> State:
    """The state in which no version from `lost` on was sealed. F falls to `lost`: the weights of later versions are void."""
    before = claimed.state or State(
        uuid=claimed.uuid, incarnation=claimed.incarnation, config_digest=config.digest, frontier=lost, sealed_through=lost - 1
    )
    falls = before.frontier is not None and before.frontier > lost
    return before.model_copy(
        update={
            "frontier": lost if falls else before.frontier,
            "weights_digest": None if falls else before.weights_digest,
            "sealed_through": min(before.sealed_through, lost - 1),
            "window": {version: topic_id for version, topic_id in before.window.items() if version < lost},
            "validations": {},
        }
    )


def _anchor(found: Resumption, config: Config, client: AdminClient, claimed: Claimed) -> None:
    """Write the logs' present positions to the checkpoint: what was accepted once is no loss the next time."""
    topics, deadline = Topics(config.run_id), Deadline(config.kafka.timeout_s)
    single = [(topics.control, 0), (topics.status, 0)]
    ends = admin.log_bounds(client, single, deadline)
    facts = manifest_facts(config, claimed, client, ends[single[0]].end, ends[single[1]].end)
    ids = {name: info.topic_id for name, info in admin.describe(client, list(found.manifest.topic_ids), deadline).items()}
    manifest = found.manifest.model_copy(
        update={
            "topic_ids": {**ids, **claimed.topic_ids},
            "next_offsets": Offsets.of(facts),
        }
    )
    folders.rewrite_manifest(found.folder, manifest)
