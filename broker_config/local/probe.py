"""Questions about a local broker: which process runs on its folder, and does it serve?"""

from __future__ import annotations

from collections.abc import Mapping

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from broker_config.local.folder import BrokerFolder, Instance
from broker_config.local.ports import is_free
from broker_config.local.server_properties import ports_of
from broker_config.processes import ProcessId

ANSWER_S = 0.5


def running_instance(folder: BrokerFolder) -> Instance | None:
    """The living broker of the folder; None if there is none."""
    last = folder.last_instance()
    return last if last is not None and last.process.alive() else _unrecorded(folder)


def _unrecorded(folder: BrokerFolder) -> Instance | None:
    """A broker whose starter died before it recorded the process: recognised by its command line."""
    for process in psutil.process_iter(["pid", "cmdline"]):
        command = process.info["cmdline"] or []
        if tuple(command[-2:]) == folder.command_end:
            identity = ProcessId.of(process.info["pid"])
            if identity is not None:
                return Instance(identity, *ports_of(folder.properties_file.read_text(encoding="utf-8")))
    return None


def serves(folder: BrokerFolder, instance: Instance, client: Mapping[str, str]) -> bool:
    """Whether the folder's own broker, recognised by its cluster id, answers, and every partition has a leader.

    Args:
        client: further librdkafka settings, for a broker that demands a login.
    """
    if is_free(instance.port):
        return False  # nothing listens yet; a client would only retry
    admin = AdminClient({"bootstrap.servers": instance.bootstrap, "log_level": 0, "error_cb": lambda _: None, **client})
    try:
        metadata = admin.list_topics(timeout=ANSWER_S)
    except KafkaException:
        return False
    # After a kill it answers before its new session is registered; until then partitions have no leader.
    led = all(p.leader >= 0 for topic in metadata.topics.values() for p in topic.partitions.values())
    return bool(metadata.brokers) and led and metadata.cluster_id == folder.cluster_id()
