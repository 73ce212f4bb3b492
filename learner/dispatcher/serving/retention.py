"""What nobody can need any more is deleted: topics of versions before the oldest kept checkpoint, and records before its offsets.

Invariants: the checkpoints come first, then what they no longer need; the last control state is kept, whatever the offsets say,
since it is what holds; a deletion that fails is tried again with the next one and harms nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.admin import Partition
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from broker_config.topics import parse as parse_topic
from schemas.errors import BrokerError, DeadlineExceeded
from schemas.failpoints import reach

log = logging.getLogger(__name__)


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
