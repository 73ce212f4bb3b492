"""Rank 0's side of the dispatcher: starts the process, asks what to do, reports what was done.

`next` answers `KeepWaiting` within seconds when there is nothing; while any other answer takes longer, `alive` is called every
few seconds: rank 0 can always show the other ranks that it lives.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from learner.link.channel import Link, LinkClosed, LinkSilent
from learner.link.messages import (
    ClaimWon,
    Done,
    LoopQuestion,
    ManifestFacts,
    ManifestQuestion,
    NextAnswer,
    NextQuestion,
    RunFinished,
    SaveQuestion,
    StopRequest,
)
from schemas.errors import ProtocolError

log = logging.getLogger(__name__)

T = TypeVar("T")

END_S = 45.0  # the dispatcher's own deadlines for its end are shorter


def start_dispatcher(
    config: str, overrides: Sequence[str], silence_s: float, checkpoint: Path | None = None, *, accept_loss: bool = False
) -> DispatcherClient:
    """Start the dispatcher process beside this one.

    silence_s: a dispatcher without a sign of life for so long counts as gone; checkpoint: what the run resumes from.
    """
    pairs = [socket.socketpair() for _ in range(2)]
    theirs = [str(end.fileno()) for _, end in pairs]
    command = [sys.executable, "-m", "learner.dispatcher", "--config", config, "--links", *theirs]
    command += ["--checkpoint", str(checkpoint)] if checkpoint is not None else []
    command += ["--accept-loss"] if accept_loss else []
    command += overrides
    process = subprocess.Popen(command, pass_fds=[end.fileno() for _, end in pairs], stdin=subprocess.DEVNULL)
    for _, end in pairs:
        end.close()
    loop, saves = (Link(end, silence_s) for end, _ in pairs)
    return DispatcherClient(loop, saves, process)


class DispatcherClient:
    """Both links to one dispatcher process."""

    def __init__(self, loop_link: Link, save_link: Link, process: subprocess.Popen[bytes]) -> None:
        self._loop_link = loop_link
        self._save_link = save_link
        self._process = process
        self.alive: Callable[[], None] = lambda: None
        """Called while the dispatcher works on an answer, every few seconds."""
        self._claim: ClaimWon | None = None

    @property
    def claim(self) -> ClaimWon:
        """The claim that `await_claim` waited for."""
        if self._claim is None:
            raise ProtocolError("the claim of the run was not awaited")
        return self._claim

    def await_claim(self) -> ClaimWon:
        """Wait until the run is claimed, if it is not yet; the dispatcher's own deadlines bound it.

        Raises:
            ConfigError: the run id is another run's, or other wrong input; LinkClosed: the dispatcher ended.
            LostData: the run's broker no longer has what resuming needs.
        """
        if self._claim is not None:
            return self._claim
        self._claim = self._guard(lambda: self._loop_link.answer(ClaimWon, self.alive))
        for loss in self._claim.losses:
            log.warning("accepted loss: %s", loss)
        return self._claim

    # --- the training loop's link ---------------------------------------------------------------------------------------------

    def next(self) -> NextAnswer:
        """What to do now."""
        return self._guard(lambda: self._loop_link.ask(NextQuestion(), NextAnswer, self.alive))

    def report(self, question: LoopQuestion) -> None:
        """Anything that is answered by `Done`."""
        self._guard(lambda: self._loop_link.ask(question, Done, self.alive))

    # --- the checkpoints' link; `ask` is called by the thread that publishes one while another trains ---------------------------

    def ask_manifest_facts(self) -> None:
        """Ask for what `manifest_facts` returns. No other question about checkpoints may come in between."""
        self._guard(lambda: self._save_link.send(ManifestQuestion()))

    def manifest_facts(self) -> ManifestFacts:
        """The answer to `ask_manifest_facts`."""
        return self._guard(lambda: self._save_link.answer(ManifestFacts, self.alive))

    def ask_save(self, question: SaveQuestion) -> None:
        """`FenceQuestion` or `CheckpointSaved`.

        If the run has another learner the dispatcher ends, and this call fails with it.
        """
        self._guard(lambda: self._save_link.ask(question, Done))

    # --- the end --------------------------------------------------------------------------------------------------------------

    def stop(self, reason: str, *, ordered: bool = True) -> None:
        """End the run, resumable. `ordered`: somebody asked for it; else it is a failure."""
        self.report(StopRequest(reason, ordered))

    def finished(self) -> None:
        self.report(RunFinished())

    def close(self) -> int:
        """End the dispatcher and return its exit code; killed if it does not end within its own deadlines."""
        self._loop_link.close()
        self._save_link.close()
        try:
            return self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(timeout=10)

    def _guard(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except LinkClosed as closed:
            code = self._process.poll()
            raise LinkClosed(f"the dispatcher process ended (exit code {code}); see logs/dispatcher.log") from closed
        except LinkSilent as silent:
            self._process.kill()
            why = f"the dispatcher process stood still and was killed (learner.rank_timeout_s): {silent}"
            raise LinkSilent(why) from silent
