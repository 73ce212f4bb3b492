"""The broker that the tests run against: a named one, one in a container, or one of our own; real in all cases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.local.installation import install
from broker_config.local.ports import free_ports
from broker_config.local.tools import write_wrappers
from broker_config.locate import ENVIRONMENT
from broker_config.preflight import check_broker
from schemas.config.kafka import KafkaConfig
from schemas.errors import ConfigError

IMAGE_VARIABLE = "WEIR_KAFKA_IMAGE"
IMAGE = "apache/kafka:4.4.0"
START_S = 120.0
TOOL_S = 60.0


@dataclass(frozen=True)
class Broker:
    """A broker that serves at `bootstrap`. `kind` says where it comes from."""

    bootstrap: str
    kind: str
    kafka: KafkaConfig = field(default_factory=KafkaConfig)

    def tool(self, name: str) -> Path:
        """A stock Kafka tool, as a script: `kafka-topics.sh`."""
        return write_wrappers(install(_say)) / name

    def run_tool(self, name: str, *arguments: str, stdin: str = "") -> str:
        """What a stock tool prints on stdout when it is run against this broker."""
        command = [str(self.tool(name)), "--bootstrap-server", self.bootstrap, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TOOL_S, check=False)
        assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@contextmanager
def any_broker(folder: Path) -> Iterator[Broker]:
    """KAFKA_BOOTSTRAP_SERVERS if set; a container if a Docker daemon answers and has the image; else a broker in `folder`."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        check_broker(KafkaConfig(), named, Deadline(START_S))
        yield Broker(named, f"named by {ENVIRONMENT}")
        return
    image = _usable_image()
    if image is not None:
        with _container(image) as bootstrap:
            yield Broker(bootstrap, f"container of {image}")
        return
    local = LocalBroker(folder, say=_say)
    try:
        yield Broker(local.start(Deadline(START_S)), f"local, log at {local.status().log}")
    finally:
        local.stop(Deadline(START_S))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _usable_image() -> str | None:
    """The image to run, if a daemon answers and holds it or can pull it. One that was asked for by name must be usable."""
    import docker
    from docker.errors import DockerException

    named = os.environ.get(IMAGE_VARIABLE)
    try:
        client = docker.from_env(timeout=10)
        try:
            client.ping()
        finally:
            client.close()
    except DockerException as error:
        if named:
            raise RuntimeError(f"{IMAGE_VARIABLE}={named}, but no Docker daemon answers: {error}") from error
        return None
    image = named or IMAGE
    client = docker.from_env(timeout=300)
    try:
        if not client.images.list(name=image):
            client.images.pull(image)
        return image
    except DockerException as error:
        if named:
            raise RuntimeError(f"{IMAGE_VARIABLE}={named} cannot be had: {error}") from error
        _say(f"no image {image} ({error}); using the local broker")
        return None
    finally:
        client.close()


@contextmanager
def _container(image: str) -> Iterator[str]:
    # Stopped below in any case, so the reaper container, which is one more image to pull, is not needed.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.docker_client import DockerClient

    # The port is the same inside and outside: a broker tells clients where to go, so it must know the outer one.
    port = free_ports(1, first=27000)[0]
    container = DockerContainer(image).with_bind_ports(port, port)
    host = DockerClient().host()
    settings = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://localhost:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{host}:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    }
    for key, value in settings.items():
        container.with_env(key, value)
    with container:
        bootstrap = f"{host}:{port}"
        deadline = Deadline(START_S)
        while True:
            try:
                check_broker(KafkaConfig(), bootstrap, deadline)
                break
            except ConfigError as error:
                if deadline.expired:
                    out, err = container.get_logs()
                    raise RuntimeError(
                        f"{image} does not serve: {error}\n{out.decode()[-3000:]}\n{err.decode()[-3000:]}"
                    ) from error
        yield bootstrap
