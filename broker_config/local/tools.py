"""Kafka's stock command-line tools as scripts, for the jars and the Java that the local broker runs with.

The scripts take the stock arguments. For a tool that needs `--bootstrap-server`, the default is KAFKA_BOOTSTRAP_SERVERS, else the
local broker. If KAFKA_HOME is set, they run the tools of that Kafka.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from broker_config.cache import kafka_cache
from broker_config.local.folder import BrokerFolder, default_root
from broker_config.local.installation import Installation
from broker_config.local.server_properties import LOG4J2_TOOLS


@dataclass(frozen=True, slots=True)
class Tool:
    """A stock tool: its main class, and whether it connects to a broker."""

    main: str
    connects: bool = True


TOOLS = {
    "kafka-console-consumer.sh": Tool("org.apache.kafka.tools.consumer.ConsoleConsumer"),
    "kafka-console-producer.sh": Tool("org.apache.kafka.tools.ConsoleProducer"),
    "kafka-topics.sh": Tool("org.apache.kafka.tools.TopicCommand"),
    "kafka-consumer-groups.sh": Tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"),
    "kafka-get-offsets.sh": Tool("org.apache.kafka.tools.GetOffsetShell"),
    "kafka-configs.sh": Tool("org.apache.kafka.tools.ConfigCommand"),
    "kafka-acls.sh": Tool("org.apache.kafka.tools.AclCommand"),
    "kafka-delete-records.sh": Tool("org.apache.kafka.tools.DeleteRecordsCommand"),
    "kafka-producer-perf-test.sh": Tool("org.apache.kafka.tools.ProducerPerformance"),
    "kafka-consumer-perf-test.sh": Tool("org.apache.kafka.tools.ConsumerPerformance"),
    "kafka-dump-log.sh": Tool("org.apache.kafka.tools.DumpLogSegments", connects=False),
}

# KAFKA_HEAP_OPTS is the stock tools' own variable; records of 64 MiB need more than Java's default on a small machine.
_SCRIPT = """\
#!/bin/sh
# Kafka's {name}; made by `python -m broker_config wrappers`.
set -eu
connects={connects}
if [ "$connects" = yes ]; then
    for argument in "$@"; do
        case $argument in
            --bootstrap-server | --bootstrap-server=* | --bootstrap-controller | --bootstrap-controller=*) connects=no ;;
            --help | --version) connects=no ;;
        esac
    done
fi
if [ "$connects" = yes ]; then
    bootstrap=${{KAFKA_BOOTSTRAP_SERVERS:-}}
    if [ -z "$bootstrap" ] && [ -r {record} ]; then read -r bootstrap < {record}; fi
    if [ -z "$bootstrap" ]; then
        echo "{name}: no broker is known: start one with 'weir broker start', or give --bootstrap-server HOST:PORT" >&2
        exit 2
    fi
    set -- --bootstrap-server "$bootstrap" "$@"
fi
if [ -n "${{KAFKA_HOME:-}}" ]; then
    if [ -z "${{JAVA_HOME:-}}" ]; then JAVA_HOME={java_home}; export JAVA_HOME; fi
    exec "$KAFKA_HOME/bin/{name}" "$@"
fi
exec {command} "$@"
"""


def wrappers_folder() -> Path:
    """The folder of the scripts."""
    return kafka_cache() / "bin"


def write_wrappers(installation: Installation) -> Path:
    """Write all scripts; returns their folder. The same input gives the same files, and each file appears whole."""
    folder = wrappers_folder()
    folder.mkdir(parents=True, exist_ok=True)
    logging = folder / "log4j2-tools.properties"
    _write(logging, LOG4J2_TOOLS, 0o644)
    options = (f"-Dlog4j2.configurationFile={logging}",)
    for name, tool in TOOLS.items():
        # The shell fills in the heap option.
        words = [shlex.quote(word) for word in installation.command(tool.main, options=options)]
        words.insert(1, "${KAFKA_HEAP_OPTS:--Xmx1g}")
        script = _SCRIPT.format(
            name=name,
            connects="yes" if tool.connects else "no",
            record=shlex.quote(str(BrokerFolder(default_root()).bootstrap_file)),
            java_home=shlex.quote(str(installation.java.parent.parent)),
            command=" ".join(words),
        )
        _write(folder / name, script, 0o755)
    return folder


def _write(file: Path, text: str, mode: int) -> None:
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.chmod(mode)
    os.replace(unfinished, file)
