"""Rank 0's checkpoints, from the copy of the state to the folder under its name.

Three parts: all ranks copy or write their state (`begin`); all ranks agree that their files are written; rank 0 alone, in its own
thread, asks whether the run is still this learner's, gives the folder its name, deletes old checkpoints, and reports to the
dispatcher what nobody needs any more. The next step does not need the third part, which may have to wait for the broker.

Invariant: one checkpoint at a time, and they get their names in the order of their versions.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from learner.checkpoint import folders
from learner.checkpoint.manifest import Manifest, Offsets, determinism
from learner.checkpoint.saving import Saving
from learner.commands import BeginCheckpoint, FinishCheckpoint, Idle
from learner.link.client import DispatcherClient
from learner.link.messages import CheckpointSaved, FenceQuestion
from schemas.config.config import Config
from schemas.disk import file_errors

if TYPE_CHECKING:  # torch and megatron, which are not needed here
    from learner.ranks import Ranks
    from learner.worker import Worker

log = logging.getLogger(__name__)


class Saves:
    """`version`: the one that the learner starts with. It needs no checkpoint if it was loaded from one of this run."""

    def __init__(self, config: Config, worker: Worker, ranks: Ranks, dispatcher: DispatcherClient, version: int) -> None:
        self.last = version if version > 0 else -1
        """Version of the last checkpoint that was begun."""
        self._config = config
        self._worker = worker
        self._ranks = ranks
        self._dispatcher = dispatcher
        self._facts = determinism(config.learner)
        self._manifest: Manifest
        self._published: Future[None] | None = None

    def begin(self, version: int, *, state_digest: str, weights_digest: str) -> None:
        """Start the checkpoint of the present state. Without `checkpointing.async_save`, finish it too.

        Args:
            state_digest, weights_digest: of the present state.

        Raises:
            FileError: this checkpoint or the one before it cannot be written.
            WeirError: as `finish`.
        """
        # One at a time: a second would need a third copy of the state, and could get its name before the first.
        self.finish()
        incarnation = self._dispatcher.claim.incarnation
        self._dispatcher.ask_manifest_facts()  # answered while the state is copied
        self._ranks.send(BeginCheckpoint(version, incarnation))
        try:
            self._worker.begin_save(version, incarnation)
        finally:
            # Taken in any case: an answer that is left on the socket would be read as the next question's.
            facts = self._dispatcher.manifest_facts()
        self._manifest = Manifest(
            run=facts.uuid,
            version=version,
            incarnation=incarnation,
            topic_ids=dict(facts.topic_ids),
            next_offsets=Offsets.of(facts),
            state_digest=state_digest,
            weights_digest=weights_digest,
            config_digest=self._config.digest,
            determinism=self._facts,
        )
        self.last = version
        if not self._config.checkpointing.async_save:
            self.finish()

    def turn(self) -> None:
        """Between two commands of the ranks: do what can be done without waiting. Raises as `finish`."""
        # That rank 0's files are written is no proof for the others': `_agree` waits for those, which began at the same time.
        if self._worker.saving is not None and self._worker.saving.wait(0.0):
            self._agree()
        if self._published is not None and self._published.done():
            self._end()

    def finish(self) -> None:
        """Wait until the checkpoint that was begun, if any, has its name.

        Raises:
            FileError: it cannot be written.
            WeirError: another checkpoint has its name; LinkClosed: another learner has the run, or the dispatcher died.
        """
        while self._worker.saving is not None:
            if self._worker.saving.wait(self._ranks.keepalive_s):
                self._agree()
            else:
                self._ranks.send(Idle())
        if self._published is not None:
            while not wait([self._published], self._ranks.keepalive_s).done:  # for the dispatcher, which shows that it lives
                self._ranks.send(Idle())
            self._end()

    def _agree(self) -> None:
        """All ranks confirm that their files are on disk. Then rank 0 continues alone."""
        self._ranks.send(FinishCheckpoint())
        saving, manifest, future = self._worker.finish_save(), self._manifest, Future[None]()

        def publish() -> None:
            try:
                self._publish(saving, manifest)
                future.set_result(None)
            except BaseException as error:  # noqa: BLE001 - top of a thread; `_end` raises it
                future.set_exception(error)

        self._published = future
        # A daemon: a process that ends with an error must not wait for it.
        threading.Thread(target=publish, name="checkpoint-publisher", daemon=True).start()

    def _end(self) -> None:
        assert self._published is not None
        published, self._published = self._published, None
        published.result()

    # --- the publisher's thread -----------------------------------------------------------------------------------------------

    def _publish(self, saving: Saving, manifest: Manifest) -> None:
        began = time.monotonic()
        # Another learner may have claimed the run while this one was writing: asked once more right before the rename.
        folder = saving.publish(manifest, confirm=lambda: self._dispatcher.ask_save(FenceQuestion()))
        log.info("checkpoint %s published_s=%.2f", folder, time.monotonic() - began)
        self._retire()

    def _retire(self) -> None:
        """Delete checkpoints beyond `keep`, then what only they needed."""
        root = self._config.folder / "checkpoints"
        with file_errors("checkpoints beyond checkpointing.keep were not deleted"):
            gone = folders.prune(root, self._config.checkpointing.keep)
        if not gone:
            return
        # Only after the folders are gone: records that a checkpoint needs are kept as long as somebody could resume from it.
        oldest = folders.oldest(root)
        if oldest is not None:
            offsets = oldest.next_offsets
            single = {"control": offsets.control, "status": offsets.status}
            self._dispatcher.ask_save(CheckpointSaved(oldest.version, single, offsets.requests))
