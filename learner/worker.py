"""What every rank does: the commands of the loop, carried out on this rank's share.

Rank 0 calls the methods directly (`loop.py`); the others call them as they hear the command. All of them are collective.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from learner.checkpoint.saving import Saving, begin_saving
from learner.commands import (
    BeginCheckpoint,
    ChangeConfig,
    DigestState,
    EndRank,
    ExportModel,
    FinishCheckpoint,
    GatherWeights,
    Idle,
    ReplayCommand,
    ScoreGroup,
    Train,
    TrainingCommand,
)
from learner.grpo.batch import make_batch
from learner.model.policy import Policy
from learner.ranks import Ranks
from learner.transfer.sending import Sent, broadcast
from schemas.config.config import Config
from schemas.disk import file_errors
from schemas.errors import ProtocolError
from schemas.failpoints import reach
from schemas.records.group import decode
from schemas.weights.plan import WeightPlan, make_plan, tensor_index
from schemas.weights.probe import probe_tokens
from schemas.weights.transports.protocol import Sender

log = logging.getLogger(__name__)


class Worker:
    """The policy of this rank and what the run wants of it."""

    def __init__(self, config: Config, policy: Policy, ranks: Ranks) -> None:
        self.config = config
        self.policy = policy
        self.ranks = ranks
        self.weight_plan: WeightPlan = make_plan(tensor_index(policy.folder), config.model.dtype, config.refit.bucket_mib)
        self.dp_of_rank = ranks.gather(policy.dp_rank)
        """Data-parallel index of each rank; ranks of one index train the same records."""
        # Fixed tokens that producers score too: equal digests show equal bytes, these show that the engine computes with them.
        self.probe = probe_tokens(policy.vocab_size, config.model.max_total_sequence_length)
        self.saving: Saving | None = None

    def train(self, records: Sequence[bytes]) -> dict[str, float]:
        """One version on this rank's records. The metrics are those of the whole batch, the same on all ranks."""
        return self.policy.train_step(make_batch([decode(record) for record in records], self.config.grpo))

    def send(self, senders: Sequence[Sender]) -> Sent:
        """Gather the weights and send them (only rank 0 has senders); without senders the digest is made all the same.

        Raises:
            ValueError: the family's tensors are not those of the checkpoint.
        """
        reach("learner.send")
        return broadcast(self.weight_plan, senders, self.policy.export(), self.policy.probe_logprobs(self.probe))

    def state_digest(self) -> str:
        return self.policy.state_digest()

    def begin_save(self, version: int, incarnation: int) -> None:
        """Start a checkpoint: the state is copied (`checkpointing.async_save`), or written.

        Raises:
            FileError
        """
        # Kept until `finish_save`: all ranks must end it in the same place among their collectives.
        root, background = self.config.folder / "checkpoints", self.config.checkpointing.async_save
        reach("learner.checkpoint")
        self.saving = begin_saving(
            root,
            version,
            incarnation,
            lambda folder: self.policy.begin_save(folder, background=background),
            rank=self.ranks.rank,
            gather=self.ranks.gather,
        )

    def finish_save(self) -> Saving:
        """Complete this rank's part of the checkpoint that was begun, once all ranks have written their files.

        Raises:
            FileError: on all ranks.
        """
        assert self.saving is not None
        saving, self.saving = self.saving, None
        saving.finish()
        return saving

    def export(self, version: int) -> Path:
        folder = self.config.folder / "hf" / f"step_{version:08d}"
        with file_errors(f"version {version} was not exported", folder):
            self.policy.save_hf(folder)
        return folder

    def obey(self) -> int:
        """Ranks 1..: carry out commands until `EndRank`. Returns the exit code."""
        while True:
            command = self.ranks.receive()  # raises when rank 0 is silent for too long, so this loop ends
            if isinstance(command, EndRank):
                return command.code
            self._carry_out(command)

    def _carry_out(self, command: TrainingCommand | ReplayCommand) -> None:
        match command:
            case Idle():
                pass
            case Train(sizes):
                self.train(self.ranks.receive_records(sizes[self.ranks.rank]))
            case GatherWeights():
                self.send(())  # the gather needs every rank; what this one gathers it throws away
            case DigestState():
                self.state_digest()
            case BeginCheckpoint(version, incarnation):
                self.begin_save(version, incarnation)
            case FinishCheckpoint():
                self.finish_save()
            case ExportModel(version):
                self.export(version)
            case ScoreGroup() | ChangeConfig():
                raise ProtocolError(f"rank {self.ranks.rank} of a run was given {command.do}, a replay's command")
            case _:
                assert_never(command)
