"""What nobody can need any more is deleted: topics of versions before the oldest kept checkpoint, and records before its offsets.

Invariants: the checkpoints come first, then what they no longer need; the last control state is kept, whatever the offsets say,
since it is what holds; a deletion that fails is tried again with the next one and harms nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.admin import Partition
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from broker_config.topics import parse as parse_topic
from schemas.errors import BrokerError, DeadlineExceeded
from schemas.failpoints import reach

log = logging.getLogger(__name__)

RETIRE_S = 60.0


class Retention:
    """Deletes in its own thread: thousands of old topics must not hold up the making of the next one.

    `failed` is called with what goes wrong while nobody waits for it.
    """

    def __init__(self, run_id: str, client: AdminClient, failed: Callable[[BaseException], None]) -> None:
        self._run_id, self._client, self._failed = run_id, client, failed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="retention")

    def retire(self, oldest: int, offsets: Mapping[str, int], requests: Mapping[int, int], last_state: int) -> None:
        """Delete what is older than the oldest checkpoint, of version `oldest`, needs; returns at once."""
        before = cuts(self._run_id, offsets, requests, last_state)
        deleting = self._thread.submit(retire, self._client, self._run_id, oldest, before, Deadline(RETIRE_S))
        deleting.add_done_callback(self._check)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _check(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._failed(error)


def retired(topics: Iterable[str], run_id: str, oldest: int) -> list[str]:
    """Those of a run's topics that belong to versions below `oldest`."""
    parsed = [(name, parse_topic(name)) for name in topics]
    return sorted(
        name for name, p in parsed if p is not None and p.run_id == run_id and p.version is not None and p.version < oldest
    )


def cuts(run_id: str, offsets: Mapping[str, int], requests: Mapping[int, int], last_state: int) -> dict[Partition, int]:
    """Where `control`, `status` and each partition of `requests` are cut: all records before that offset go."""
    topics = Topics(run_id)
    found: dict[Partition, int] = {
        (topics.control, 0): min(offsets["control"], last_state),
        (topics.status, 0): offsets["status"],
    }
    found |= {(topics.requests, partition): offset for partition, offset in requests.items()}
    return {partition: offset for partition, offset in found.items() if offset > 0}


def retire(client: AdminClient, run_id: str, oldest: int, before: Mapping[Partition, int], deadline: Deadline) -> None:
    """Delete. Blocks while the broker works; called apart from the dispatcher's loop."""
    try:
        names = retired(admin.topics_of_run(client, run_id, deadline), run_id, oldest)
        reach("dispatcher.before_delete")
        if names:
            admin.delete_topics(client, names, deadline)
        admin.delete_records(client, before, deadline)
        reach("dispatcher.after_delete")
        log.info(
            "retired topics=%d below version %d, records before %s", len(names), oldest, {p[0]: o for p, o in before.items()}
        )
    except (BrokerError, DeadlineExceeded) as error:
        log.warning("retiring what is older than version %d failed, tried again later: %s", oldest, error)
