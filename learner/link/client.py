"""Rank 0's side of the dispatcher: starts the process, asks what to do, tells what was done.

`next` answers `Wait` within seconds when there is nothing; while any other answer takes longer, `alive` is called every few
seconds: rank 0 can always show the other ranks that it lives.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from learner.link.channel import Link, LinkClosed, LinkSilent, Message
from schemas.errors import ConfigError, LostData, Problem, WeirError

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    what: str


@dataclass(frozen=True, slots=True)
class Refit:
    """Open one rendezvous for each entry of `worlds` (ranks, the sender included) and give out `version`."""

    number: int
    version: int
    groups: Sequence[Mapping[str, int]]
    worlds: Sequence[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Train `version` with these records, in slot order."""

    version: int
    records: Sequence[bytes]
    seal_offset: int
    catch_up: bool
    offsets: Mapping[int, int]
    counters: Mapping[str, float]
    recorded_state: str | None = None
    """Digest of the state after this version when it was trained before, if it was and that was recorded."""


@dataclass(frozen=True, slots=True)
class Finish:
    pass


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str
    finished: bool
    ordered: bool


Answer = Wait | Refit | Batch | Finish | Stop


@dataclass(slots=True)
class News:
    """Metrics that came up between steps, by version (results of validations)."""

    items: list[tuple[int, dict[str, float]]] = field(default_factory=list)


class DispatcherClient:
    """Owns the process and the two links to it."""

    def __init__(
        self,
        config: str,
        overrides: Sequence[str],
        silence_s: float,
        checkpoint: Path | None = None,
        *,
        accept_loss: bool = False,
    ) -> None:
        """silence_s: a dispatcher without a sign of life for so long counts as gone; checkpoint: what the run goes on from."""
        pairs = [socket.socketpair() for _ in range(2)]
        theirs = [str(end.fileno()) for _, end in pairs]
        command = [sys.executable, "-m", "learner.dispatcher", "--config", config, "--links", *theirs]
        command += ["--checkpoint", str(checkpoint)] if checkpoint is not None else []
        command += ["--accept-loss"] if accept_loss else []
        command += overrides
        self.process = subprocess.Popen(command, pass_fds=[end.fileno() for _, end in pairs], stdin=subprocess.DEVNULL)
        for _, end in pairs:
            end.close()
        self.link, self.save_link = (Link(end, silence_s) for end, _ in pairs)
        self.alive: Callable[[], None] = lambda: None
        """Called while the dispatcher works on an answer, every few seconds."""
        self.news = News()
        self.uuid = ""
        self.incarnation = -1
        self.lost_from: int | None = None
        """Versions from here on were lost, and are trained anew with other data."""

    def await_claim(self) -> None:
        """Wait until the run is claimed, if it is not yet; the dispatcher's own deadlines bound it.

        Raises:
            ConfigError: the run id is another run's, or other wrong input; LinkClosed: the dispatcher ended.
            LostData: the run's broker no longer has what going on needs.
        """
        if self.uuid:
            return
        hello = self._guard(lambda: self.link.answer(self.alive))
        if "error" in hello:
            if hello["code"] == 1:
                raise LostData(hello["error"])
            raise ConfigError([Problem("dispatcher", None, hello["error"], "see above")])
        self.uuid, self.incarnation, self.lost_from = hello["uuid"], hello["incarnation"], hello["lost_from"]
        for loss in hello["losses"]:
            log.warning("accepted loss: %s", loss)

    def ready(self, version: int, plan_digest: str, weights_digest: str) -> None:
        self._ask("ready", version=version, plan_digest=plan_digest, weights_digest=weights_digest)

    def next(self) -> Answer:
        answer = self._ask("next")
        self.news.items += [(item["version"], item["metrics"]) for item in answer.pop("news", [])]
        match answer.pop("do"):
            case "wait":
                return Wait(**answer)
            case "refit":
                return Refit(**answer)
            case "batch":
                return Batch(**answer)
            case "finish":
                return Finish()
            case "stop":
                return Stop(**answer)
            case other:
                raise WeirError(f"the dispatcher answered {other!r} ({json.dumps(list(answer))})")

    def offer(self, rendezvous: Sequence[tuple[str, int, str, str | None]]) -> None:
        self._ask("offer", rendezvous=[list(r) for r in rendezvous])

    def sent(self, digest: str, failed: Mapping[int, str]) -> None:
        self._ask("sent", digest=digest, failed=dict(failed))

    def trained(self, version: int, *, waited: bool, weights_digest: str | None = None) -> None:
        self._ask("trained", version=version, waited=waited, weights_digest=weights_digest)

    def commit(
        self,
        step: int,
        *,
        seal_offset: int,
        offsets: Mapping[int, int],
        state_digest: str | None,
        weights_digest: str | None,
        metrics: Mapping[str, float],
    ) -> None:
        self._ask(
            "commit",
            step=step,
            seal_offset=seal_offset,
            offsets=dict(offsets),
            state_digest=state_digest,
            weights_digest=weights_digest,
            metrics=dict(metrics),
        )

    # What follows is asked over the link for checkpoints; the last two by the thread that publishes one while another trains.

    def ask_manifest_facts(self) -> None:
        """Ask for what `manifest_facts` returns. No other question about checkpoints may come in between."""
        self._guard(lambda: self.save_link.send({"op": "manifest"}))

    def manifest_facts(self) -> Message:
        """Who this learner is, ids of topics, and where one that goes on from here reads on."""
        return self._guard(lambda: self.save_link.answer(self.alive))

    def fence(self) -> None:
        """Read `control` to its end; the dispatcher ends, and with it this call fails, if the run has another learner."""
        self._guard(lambda: self.save_link.ask("fence"))

    def saved(self, oldest: int, offsets: Mapping[str, int], requests: Mapping[int, int]) -> None:
        """The oldest checkpoint that is kept is of version `oldest` and needs nothing before these offsets."""
        self._guard(lambda: self.save_link.ask("saved", oldest=oldest, offsets=dict(offsets), requests=dict(requests)))

    # --- the end --------------------------------------------------------------------------------------------------------------

    def stop(self, reason: str, *, ordered: bool = True) -> None:
        """End the run, resumable. `ordered`: somebody asked for it; else it is a failure."""
        self._ask("stop", reason=reason, ordered=ordered)

    def finished(self) -> None:
        self._ask("finished")

    def close(self) -> int:
        """End the dispatcher and return its exit code; killed if it does not end within its own deadlines."""
        self.link.close()
        self.save_link.close()
        try:
            return self.process.wait(timeout=45)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(timeout=10)

    def _ask(self, op: str, **payload: Any) -> Message:
        return self._guard(lambda: self.link.ask(op, self.alive, **payload))

    def _guard(self, call: Callable[[], T]) -> T:
        try:
            answer = call()
        except LinkClosed as closed:
            code = self.process.poll()
            raise LinkClosed(f"the dispatcher process ended (exit code {code}); see logs/dispatcher.log") from closed
        except LinkSilent as silent:
            self.process.kill()
            why = f"the dispatcher process stood still and was killed (learner.rank_timeout_s): {silent}"
            raise LinkSilent(why) from silent
        return answer
