"""What every rank does: carry out the loop's commands on this rank's share.

Rank 0 calls the methods directly (`loop.py`), the others when they receive the command. All of them are collective.
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
    """This rank's policy and the commands on it."""

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
        """Train one version on this rank's records. The metrics are those of the whole batch, the same on all ranks."""
        return self.policy.train_step(make_batch([decode(record) for record in records], self.config.grpo))

    def send(self, senders: Sequence[Sender]) -> Sent:
        """Gather the weights and send them. Only rank 0 has senders; without any, only the digest is computed.

        Raises:
            ValueError: the family's tensors are not those of the checkpoint.
        """
        reach("learner.send")
        return broadcast(self.weight_plan, senders, self.policy.export(), self.policy.probe_logprobs(self.probe))

    def state_digest(self) -> str:
        """sha256 (hex) of weights, moments, steps and the position in the schedule, of all ranks; the same on all.

        Raises:
            WeirError: two data-parallel copies differ.
        """
        return self.policy.state_digest()

    def begin_save(self, version: int, incarnation: int) -> None:
        """Start a checkpoint: copy the state (`checkpointing.async_save`), or write it.

        Raises:
            FileError: it cannot be written.
        """
        # Kept until `finish_save`: all ranks must finish it at the same place among their collectives.
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
        """Write the weights of `version` as a Hugging Face checkpoint; returns its folder.

        Raises:
            FileError: it cannot be written.
        """
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
