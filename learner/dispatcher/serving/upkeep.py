"""What checkpoints need of the logs: where a learner that goes on from one reads on, and what no checkpoint needs any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka.admin import AdminClient

from broker_config.deadline import Deadline
from learner.dispatcher.serving.outcomes import manifest_facts
from learner.dispatcher.serving.retention import cuts, retire
from learner.dispatcher.takeover.claim import Claimed, ControlLog
from learner.link.channel import Message
from schemas.config.config import Config

RETIRE_S = 60.0


class Upkeep:
    """`failed` hears of what goes wrong while nobody waits for it."""

    def __init__(
        self, config: Config, claimed: Claimed, control: ControlLog, client: AdminClient, failed: Callable[[BaseException], None]
    ) -> None:
        self._config, self._claimed, self._control, self._client = config, claimed, control, client
        self._failed = failed
        # A thread of its own: thousands of old topics must not hold up the making of the next one.
        self._retiring = ThreadPoolExecutor(1, thread_name_prefix="retention")

    def facts(self, status_at: int, topic_ids: Mapping[str, str]) -> Message:
        """For the manifest of a checkpoint of now. `topic_ids`: of the versions that are open."""
        facts = manifest_facts(self._config, self._claimed, self._client, self._control.position, status_at)
        return {**facts, "topic_ids": {**self._claimed.topic_ids, **topic_ids}}

    def retire(self, oldest: int, offsets: Mapping[str, int], requests: Mapping[int, int]) -> None:
        """Delete what is older than the oldest checkpoint, of version `oldest`, needs; returns at once."""
        before = cuts(self._config.run_id, offsets, requests, self._control.state_offset)
        self._retiring.submit(retire, self._client, self._config.run_id, oldest, before, Deadline(RETIRE_S)).add_done_callback(
            self._judge
        )

    def close(self) -> None:
        self._retiring.shutdown(wait=True, cancel_futures=True)

    def _judge(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._failed(error)
