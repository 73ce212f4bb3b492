"""One rank of a replay: trains, hashes and scores as the learner's ranks do, and changes nothing but its own memory."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learner.commands import ChangeConfig, DigestState, GatherWeights, ReplayCommand, ScoreGroup, Train, TrainingCommand
from learner.grpo.batch import deal, make_batch
from learner.grpo.group_metrics import group_metrics
from learner.ranks import Ranks
from learner.replay.compare import StepFigures
from learner.session import make_policy
from learner.worker import Worker
from schemas.config.config import Config
from schemas.records.group import decode


class ReplayWorker(Worker):
    """`changed`: the config that `change_config` switches to; `checkpoint`: the folder that the state is loaded from.

    Raises:
        WeirError: the checkpoint cannot be loaded.
    """

    def __init__(self, config: Config, changed: Config | None, ranks: Ranks, checkpoint: Path) -> None:
        policy = make_policy(config)
        policy.load(checkpoint)
        super().__init__(config, policy, ranks)
        self._changed = changed
        self._tokenizer: Any = None

    # --- rank 0 ---------------------------------------------------------------------------------------------------------------

    def step(self, records: Sequence[bytes]) -> StepFigures:
        """Train one version on its records in slot order; the figures are those of the whole batch."""
        groups = [decode(record) for record in records]
        shares = deal(groups, records, self.policy.dp_size, self.dp_of_rank)
        self.ranks.send(Train([[len(record) for record in share] for share in shares]))
        metrics = {**group_metrics(groups), **self.train(self.ranks.send_records(shares))}
        self.ranks.send(GatherWeights())
        weights = self.send(()).digest
        self.ranks.send(DigestState())
        return StepFigures.of(metrics, self.state_digest(), weights)

    def present_digest(self) -> str:
        """The digest of the present state of all ranks."""
        self.ranks.send(DigestState())
        return self.state_digest()

    def score(self, record: bytes) -> list[list[float]]:
        """Log-probability of every response token of one group, `[trajectory][token]`; 0 where the environment wrote it."""
        self.ranks.send(ScoreGroup(len(record)))
        self.ranks.send_records([[record]] * self.ranks.size)
        return self._score(record)

    def text(self, ids: Sequence[int]) -> str:
        """Tokens as text, special tokens included."""
        if self._tokenizer is None:
            from transformers import AutoTokenizer  # only here: a second to import

            self._tokenizer = AutoTokenizer.from_pretrained(self.config.model.tokenizer or self.policy.folder)
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def change_config(self) -> None:
        """Switch to the changed config and keep the present state."""
        folder = Path(tempfile.mkdtemp(prefix="weir-replay-"))
        try:
            self.ranks.send(ChangeConfig(str(folder)))
            self._rebuild(folder)
        finally:
            shutil.rmtree(folder)

    # --- all ranks ------------------------------------------------------------------------------------------------------------

    def _carry_out(self, command: TrainingCommand | ReplayCommand) -> None:
        match command:
            case ScoreGroup(size):
                (record,) = self.ranks.receive_records([size])
                self._score(record)
            case ChangeConfig(folder):
                self._rebuild(Path(folder))
            case _:
                super()._carry_out(command)

    def _score(self, record: bytes) -> list[list[float]]:
        group = decode(record)
        rows = self.policy.logprobs(make_batch([group], self.config.grpo)).tolist()
        start = len(group.prompt)
        return [row[start : start + len(t.tokens)] for row, t in zip(rows, group.trajectories, strict=True)]

    def _rebuild(self, folder: Path) -> None:
        assert self._changed is not None
        self.policy.save(folder)
        self.ranks.barrier()
        del self.policy
        gc.collect()
        self.config = self._changed
        self.policy = make_policy(self.config)
        self.policy.load(folder)
        self.ranks.barrier()
