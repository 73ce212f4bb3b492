"""One dispatcher from the claim of its run to its end: puts the core, the shell and what both work with together."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path

from broker_config import locate
from broker_config.clients.reader import LogReader
from broker_config.clients.settings import make_admin
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from broker_config.watchdog import Watchdog
from learner.checkpoint.kept_config import keep_config
from learner.dispatcher.deciding.dispatcher import Dispatcher
from learner.dispatcher.serving.beats import Beats
from learner.dispatcher.serving.rank0 import Rank0
from learner.dispatcher.serving.rank_watch import HostRanks, RankWatch
from learner.dispatcher.serving.retention import Retention
from learner.dispatcher.serving.shell import Collaborators, Item, Shell
from learner.dispatcher.serving.state_log import StateLog
from learner.dispatcher.serving.version_topics import VersionTopics
from learner.dispatcher.state.plan import Plan
from learner.dispatcher.takeover.claim import Claimed, ControlLog, claim
from learner.dispatcher.takeover.resumption import recorded_now, review, settle
from learner.link.channel import Answers
from learner.link.messages import ClaimWon
from schemas.config.config import Config
from schemas.model_files import model_config, model_digest, model_folder, tokenizer_digest
from schemas.weights.plan import make_plan, tensor_index

STANDSTILL_S = 60.0


def serve(config: Config, loop_link: Answers, save_link: Answers, checkpoint: Path | None, *, accept_loss: bool) -> None:
    """Claim the run, report that to rank 0, and dispatch until the run is over.

    Args:
        loop_link: for the questions of rank 0's loop.
        save_link: for those of its checkpoints.
        checkpoint: the folder that rank 0 resumes from, if it does.
        accept_loss: resume even if data of the run is lost.

    Raises:
        LostData: before anything was changed.
        ConfigError: the checkpoint or the run id is another run's.
        WeirError
    """
    bootstrap = locate.bootstrap_servers(config.kafka, Deadline(config.kafka.timeout_s))
    inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        inbox.put(error)

    writer = LogWriter(config.kafka, bootstrap, f"{config.run_id}.dispatcher", failed)
    client = make_admin(config.kafka, bootstrap, f"{config.run_id}.claim")
    found = review(config, bootstrap, client, checkpoint, accept_loss=accept_loss) if checkpoint is not None else None
    uuid, reader = (found.manifest.run, found.control) if found is not None else (None, None)
    claimed, control = claim(config.kafka, bootstrap, client, writer, config.run_id, config.digest, uuid, reader)
    keep_config(config)
    if found is not None:
        claimed = settle(found, config, client, claimed)
    lost_from = found.lost_from if found is not None else None
    recorded = recorded_now(config, bootstrap, client, found.manifest, claimed.state) if found is not None else {}
    core = Dispatcher(plan_of(config, claimed), found.manifest.version if found is not None else 0, claimed.state)
    shell = Shell(
        config,
        bootstrap,
        claimed,
        core,
        inbox,
        _collaborators(config, bootstrap, claimed, core, Rank0(loop_link, save_link), control, writer, inbox.put),
        vocab_size=int(model_config(model_folder(config.model.path))["vocab_size"]),
        recorded={step: outcome for step, outcome in recorded.items() if lost_from is None or step < lost_from},
    )
    losses = [loss.text for loss in found.losses] if found is not None else []
    loop_link.answer(ClaimWon(claimed.uuid, claimed.incarnation, lost_from, losses))
    shell.run()
    # Only a run that ended well waits for its last records; after a failure the broker may be gone, and the process just ends.
    shell.close()
    if failures:
        raise failures[0]


def _collaborators(
    config: Config,
    bootstrap: str,
    claimed: Claimed,
    core: Dispatcher,
    rank0: Rank0,
    control: ControlLog,
    writer: LogWriter,
    put: Callable[[Item], None],
) -> Collaborators:
    client = make_admin(config.kafka, bootstrap, f"{config.run_id}.dispatcher-admin")
    reader = LogReader(config.kafka, bootstrap, f"{config.run_id}.dispatcher", f"{config.run_id}.learner", put)
    return Collaborators(
        writer=writer,
        reader=reader,
        control=control,
        versions=VersionTopics(config, client, reader, claimed.state),
        client=client,
        rank0=rank0,
        states=StateLog(writer, Topics(config.run_id).control, core.state),
        retention=Retention(config.run_id, client, put),
        beats=Beats(config.dispatch.beat_s, config.kafka.outage_timeout_s),
        rank_watch=RankWatch(HostRanks(config.learner.rank_timeout_s), put),
        watchdog=Watchdog(STANDSTILL_S),
    )


def plan_of(config: Config, claimed: Claimed) -> Plan:
    """The dispatcher's view of the configuration."""
    folder = model_folder(config.model.path)
    tokenizer = model_folder(config.model.tokenizer) if config.model.tokenizer else folder
    return Plan(
        uuid=claimed.uuid,
        incarnation=claimed.incarnation,
        config_digest=config.digest,
        seed=config.run.seed,
        grpo=config.grpo,
        generation=config.generation,
        refit=config.refit,
        dispatch=config.dispatch,
        producer_count=config.producer.count,
        request_partitions=config.kafka.request_partitions,
        plan_digest=make_plan(tensor_index(folder), config.model.dtype, config.refit.bucket_mib).digest,
        agreed=config.agreed,
        digests={"model": model_digest(folder), "tokenizer": tokenizer_digest(tokenizer)},
    )
