"""The local broker, the clients and the admin calls against a real Kafka."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from broker_config import topics
from broker_config.clients import admin as topics_admin
from broker_config.clients import settings as clients
from broker_config.clients.admin import LogBounds, TopicExists
from broker_config.clients.consuming import assign
from broker_config.clients.errors import data_of
from broker_config.clients.security import security_settings
from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.preflight import check_broker
from broker_config.topics import Topics, TopicSpec
from schemas.config.kafka import KafkaConfig, SecurityConfig
from schemas.errors import BrokerError, ConfigError, DeadlineExceeded
from tests.brokers import Broker
from tests.support import eventually

MakeBroker = Callable[..., LocalBroker]
SECONDS = 30.0


@pytest.fixture
def admin(broker: Broker, run_id: str) -> Iterator[AdminClient]:
    made = clients.make_admin(broker.kafka, broker.bootstrap, "test.admin")
    yield made
    topics_admin.delete_topics(made, topics_admin.topics_of_run(made, run_id, Deadline(SECONDS)), Deadline(SECONDS))


def make_topics(admin: AdminClient, broker: Broker, run_id: str, *versions: int) -> list[str]:
    specs = [topics.version_spec(run_id, "trajectories", version, broker.kafka) for version in versions]
    return list(topics_admin.create_topics(admin, specs, Deadline(SECONDS)))


def publish(broker: Broker, topic: str, *values: bytes, headers: list[tuple[str, bytes]] | None = None) -> None:
    producer = clients.make_producer(broker.kafka, broker.bootstrap, "test.producer")
    failed: list[object] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=f"k{number}",
            partition=0,
            headers=headers or [],
            on_delivery=lambda e, _: failed.append(e) if e else None,
        )
    assert producer.flush(SECONDS) == 0
    assert failed == []


def read(consumer: Consumer, count: int) -> list[bytes]:
    deadline = Deadline(SECONDS)
    values: list[bytes] = []
    while len(values) < count:
        deadline.check(f"{count} records, have {len(values)}")
        message = data_of(consumer.poll(0.2))
        if message is not None:
            values.append(message.value() or b"")
    return values


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Consumer]:
    made = clients.make_consumer(broker.kafka, broker.bootstrap, "test.consumer", "test.reader")
    yield made
    made.close()


# Topics


def test_created_topics_hold_what_was_asked_for(admin: AdminClient, broker: Broker, run_id: str) -> None:
    kafka = KafkaConfig(partitions=3, request_partitions=2, max_record_mib=5)
    specs = [*topics.specs_for_run(run_id, kafka).values(), topics.version_spec(run_id, "trajectories", 0, kafka)]
    ids = topics_admin.create_topics(admin, specs, Deadline(SECONDS))
    assert set(ids) == {spec.name for spec in specs}
    assert len(set(ids.values())) == len(specs)
    assert topics_admin.topics_of_run(admin, run_id, Deadline(SECONDS)) == sorted(ids)
    told = broker.run_tool("kafka-configs.sh", "--describe", "--topic", Topics(run_id).trajectories(0))
    assert "max.message.bytes=6291456" in told and "message.timestamp.type=LogAppendTime" in told
    found = topics_admin.describe(admin, list(ids), Deadline(SECONDS))
    assert {name: info.topic_id for name, info in found.items()} == ids
    assert found[Topics(run_id).trajectories(0)].partitions == 3
    assert found[Topics(run_id).requests].partitions == 2


def test_the_topic_id_is_the_one_that_kafka_prints(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    info = topics_admin.describe(admin, [topic], Deadline(SECONDS))[topic]
    assert f"TopicId: {info.topic_id}" in broker.run_tool("kafka-topics.sh", "--describe", "--topic", topic)


def test_a_run_id_can_be_taken_once(admin: AdminClient, broker: Broker, run_id: str) -> None:
    assert topics_admin.topics_of_run(admin, run_id, Deadline(SECONDS)) == []
    control = topics.specs_for_run(run_id, broker.kafka)["control"]
    ids = topics_admin.create_topics(admin, [control], Deadline(SECONDS))
    assert topics_admin.topics_of_run(admin, run_id, Deadline(SECONDS)) == [control.name]
    with pytest.raises(TopicExists) as caught:
        topics_admin.create_topics(admin, [control], Deadline(SECONDS))
    assert caught.value.names == (control.name,)
    assert topics_admin.create_topics(admin, [control], Deadline(SECONDS), adopt_existing=True) == ids


def test_of_many_that_take_a_run_id_one_wins(broker: Broker, run_id: str, admin: AdminClient) -> None:
    control = topics.specs_for_run(run_id, broker.kafka)["control"]
    won: list[int] = []
    lost: list[int] = []

    def take(number: int) -> None:
        own = clients.make_admin(broker.kafka, broker.bootstrap, f"test.admin.{number}")
        try:
            topics_admin.create_topics(own, [control], Deadline(SECONDS))
            won.append(number)
        except TopicExists:
            lost.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert (len(won), len(lost)) == (1, 3)


def test_another_size_than_asked_for_is_one_error_with_the_fix(admin: AdminClient, broker: Broker, run_id: str) -> None:
    small = topics.version_spec(run_id, "trajectories", 0, KafkaConfig(max_record_mib=2))
    topics_admin.create_topics(admin, [small], Deadline(SECONDS))
    large = topics.version_spec(run_id, "trajectories", 0, KafkaConfig(max_record_mib=64, partitions=2))
    with pytest.raises(BrokerError) as caught:
        topics_admin.create_topics(admin, [large], Deadline(SECONDS), adopt_existing=True)
    text = str(caught.value)
    assert f"topic {small.name}: max.message.bytes: asked 68157440, got 3145728" in text
    assert "kafka.max_record_mib" in text
    assert "partitions: asked 2, got 1" in text


def test_a_refused_setting_names_topic_and_setting(admin: AdminClient, run_id: str) -> None:
    with pytest.raises(BrokerError, match=r"\.x: INVALID_CONFIG .*max\.message\.bytes"):
        topics_admin.create_topics(admin, [TopicSpec(f"{run_id}.x", 1, 1, {"max.message.bytes": "many"})], Deadline(SECONDS))
    with pytest.raises(BrokerError, match=r"INVALID_REPLICATION_FACTOR.*kafka\.replication_factor"):
        topics_admin.create_topics(admin, [TopicSpec(f"{run_id}.y", 1, 3)], Deadline(SECONDS))


def test_the_id_changes_when_a_topic_is_made_again(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    first = topics_admin.describe(admin, [topic], Deadline(SECONDS))[topic].topic_id
    assert topics_admin.delete_topics(admin, [topic, f"{run_id}.gone"], Deadline(SECONDS)) == [topic]
    eventually(lambda: not topics_admin.describe(admin, [topic], Deadline(SECONDS)), SECONDS, "the deletion")
    make_topics(admin, broker, run_id, 0)
    assert topics_admin.describe(admin, [topic], Deadline(SECONDS))[topic].topic_id != first


def test_cut_records_move_the_start_of_the_log(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    publish(broker, topic, *[b"x"] * 10)
    assert topics_admin.log_bounds(admin, [(topic, 0)], Deadline(SECONDS)) == {(topic, 0): LogBounds(0, 10)}
    assert topics_admin.delete_records(admin, {(topic, 0): 4}, Deadline(SECONDS)) == {(topic, 0): 4}
    assert topics_admin.log_bounds(admin, [(topic, 0)], Deadline(SECONDS)) == {(topic, 0): LogBounds(4, 10)}
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        topics_admin.delete_records(admin, {(topic, 0): 99}, Deadline(SECONDS))
    with pytest.raises(BrokerError, match="gone"):
        topics_admin.log_bounds(admin, [(f"{run_id}.gone", 0)], Deadline(SECONDS))


# Records


def test_a_published_record_can_be_read_within_milliseconds(
    admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer
) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    assign(consumer, {(topic, 0): 0}, Deadline(SECONDS))
    producer = clients.make_producer(broker.kafka, broker.bootstrap, "test.producer")
    took: list[float] = []
    for number in range(40):
        value = hashlib.sha256(str(number).encode()).digest() * 300
        started = time.monotonic()
        producer.produce(topic, value, partition=0)
        producer.flush(SECONDS)
        assert read(consumer, 1) == [value]
        took.append(time.monotonic() - started)
    assert sorted(took)[20] < 0.02, "half of all take less than 20 ms, on a busy machine too"


def test_a_consumer_reads_a_new_topic_at_once(admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer) -> None:
    first, second, third = make_topics(admin, broker, run_id, 0, 1, 2)
    for topic in (first, second, third):
        publish(broker, topic, topic.encode())
    assign(consumer, {(first, 0): 0}, Deadline(SECONDS))
    read(consumer, 1)
    took: list[float] = []
    for positions in ({(first, 0): 1, (second, 0): 0}, {(first, 0): 1, (second, 0): 1, (third, 0): 0}):
        started = time.monotonic()
        assign(consumer, positions, Deadline(SECONDS))
        read(consumer, 1)
        took.append(time.monotonic() - started)
    assert min(took) < 0.5, "a topic that was not looked up takes 0.7 s"


@pytest.mark.parametrize(
    ("codec", "random_mib", "zero_mib"),
    [
        ("none", 64, 0),
        ("lz4", 64, 0),
        # A ratio of 2.3 is where the guessing of zstd's size misses unless the consumer's limit is three times the record.
        ("zstd", 27, 35),
        ("gzip", 4, 4),
        ("snappy", 8, 8),
    ],
)
def test_a_large_record_arrives_whole_with_every_codec(
    admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer, codec: str, random_mib: int, zero_mib: int
) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    kafka = broker.kafka.model_copy(update={"compression": codec})
    value = os.urandom(random_mib << 20) + bytes(zero_mib << 20)
    publish(Broker(broker.bootstrap, broker.kind, kafka), topic, value)
    assign(consumer, {(topic, 0): 0}, Deadline(SECONDS))
    assert read(consumer, 1) == [value]


def test_an_offset_outside_the_log_is_an_error_and_not_a_jump(
    admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer
) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    publish(broker, topic, b"x")
    assign(consumer, {(topic, 0): 7}, Deadline(SECONDS))
    with pytest.raises(BrokerError, match="_AUTO_OFFSET_RESET"):
        read(consumer, 1)


def test_a_missing_topic_is_an_error_and_not_silence(broker: Broker, run_id: str, consumer: Consumer) -> None:
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PART"):
        assign(consumer, {(f"{run_id}.gone", 0): 0}, Deadline(SECONDS))


def test_committed_offsets_are_shown_though_nobody_is_a_member(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    publish(broker, topic, b"x", b"y")
    group = f"{run_id}.learner"
    consumer = clients.make_consumer(broker.kafka, broker.bootstrap, "test.consumer", group)
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    finally:
        consumer.close()
    told = broker.run_tool("kafka-consumer-groups.sh", "--describe", "--group", group)
    row = next(line.split() for line in told.splitlines() if topic in line)
    assert row[3:6] == ["1", "2", "1"], "current offset, end of the log, lag"


# Stock tools


def test_the_stock_console_consumer_shows_keys_and_headers(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    publish(broker, topic, b"\x00binary", headers=[("gist", b'{"r":[1.0]}'), ("kind", b"group")])
    shown = broker.run_tool(
        "kafka-console-consumer.sh",
        *("--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000"),
        *("--formatter-property", "print.headers=true", "--formatter-property", "print.key=true"),
        *("--formatter-property", "print.value=false"),
    )
    assert shown.splitlines()[0] == 'gist:{"r":[1.0]},kind:group\tk0'


def test_a_record_of_the_stock_console_producer_can_be_read(
    admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer
) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    broker.run_tool("kafka-console-producer.sh", "--topic", topic, stdin="by hand\n")
    assign(consumer, {(topic, 0): 0}, Deadline(SECONDS))
    assert read(consumer, 1) == [b"by hand"]
    offsets = broker.run_tool("kafka-get-offsets.sh", "--topic", topic)
    assert offsets.strip() == f"{topic}:0:1"


# The local broker


def test_a_killed_broker_is_back_with_its_data_on_the_same_port(own_broker: MakeBroker, run_id: str) -> None:
    local = own_broker()
    kafka = KafkaConfig()
    broker = Broker(local.start(Deadline(60)), "own")
    admin = clients.make_admin(kafka, broker.bootstrap, "test.admin")
    [topic] = make_topics(admin, broker, run_id, 0)
    ids = topics_admin.describe(admin, [topic], Deadline(SECONDS))
    values = [str(number).encode() for number in range(100)]
    publish(broker, topic, *values)
    consumer = clients.make_consumer(kafka, broker.bootstrap, "test.consumer", "g")
    producer = clients.make_producer(kafka, broker.bootstrap, "test.producer")
    producer.produce(topic, b"100", partition=0)
    assert producer.flush(SECONDS) == 0
    assign(consumer, {(topic, 0): 0}, Deadline(SECONDS))
    assert read(consumer, 50) == values[:50]

    assert local.pid is not None
    os.kill(local.pid, signal.SIGKILL)
    producer.produce(topic, b"101", partition=0)  # waits in the client
    eventually(lambda: local.status().state == "stopped", SECONDS, "the end of the broker")
    started = time.monotonic()
    assert local.start(Deadline(60)) == broker.bootstrap
    assert time.monotonic() - started < 30

    assert read(consumer, 52) == [*values[50:], b"100", b"101"]
    assert producer.flush(SECONDS) == 0
    assert topics_admin.describe(admin, [topic], Deadline(SECONDS)) == ids
    assert topics_admin.log_bounds(admin, [(topic, 0)], Deadline(SECONDS)) == {(topic, 0): LogBounds(0, 102)}
    consumer.close()


def test_starting_twice_gives_the_running_broker(own_broker: MakeBroker) -> None:
    local = own_broker()
    bootstrap = local.start(Deadline(60))
    pid = local.pid
    assert LocalBroker(local.root).start(Deadline(10)) == bootstrap
    assert LocalBroker(local.root).pid == pid
    assert local.status().state == "running"


def test_two_processes_that_start_at_once_start_one_broker(own_broker: MakeBroker) -> None:
    local = own_broker()
    program = (
        "import sys; from pathlib import Path; from broker_config.local.broker import LocalBroker;"
        "from broker_config.deadline import Deadline;"
        "local = LocalBroker(Path(sys.argv[1])); print(local.start(Deadline(60)), local.pid)"
    )
    starts = [
        subprocess.Popen([sys.executable, "-c", program, str(local.root)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = [start.communicate(timeout=90)[0].split() for start in starts]
    assert [start.returncode for start in starts] == [0, 0]
    assert answers[0] == answers[1]
    assert answers[0][1] == str(local.pid)


def test_brokers_of_two_folders_live_side_by_side(own_broker: MakeBroker) -> None:
    one, two = own_broker("one"), own_broker("two")
    assert one.start(Deadline(60)) != two.start(Deadline(60))
    assert (one.status().state, two.status().state) == ("running", "running")
    assert one.stop(Deadline(30))
    assert (one.status().state, two.status().state) == ("stopped", "running")


def test_a_broker_whose_starter_died_before_it_wrote_the_id_down_is_found(own_broker: MakeBroker) -> None:
    local = own_broker()
    bootstrap = local.start(Deadline(60))
    pid = local.pid
    (local.root / "broker.json").unlink()
    found = LocalBroker(local.root)
    assert (found.pid, found.start(Deadline(10))) == (pid, bootstrap)
    assert found.stop(Deadline(30))


def test_another_process_with_the_brokers_former_id_is_left_alone(own_broker: MakeBroker) -> None:
    local = own_broker()
    local.start(Deadline(60))
    local.stop(Deadline(30))
    record = local.root / "broker.json"
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        text = record.read_text()
        former = text.split('"pid": ')[1].split(",")[0]
        record.write_text(text.replace(f'"pid": {former}', f'"pid": {bystander.pid}'))
        assert not local.kill()
        assert not local.stop(Deadline(10))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_broker_that_does_not_start_says_why(own_broker: MakeBroker) -> None:
    local = own_broker(properties={"num.io.threads": "none"})
    with pytest.raises(BrokerError, match=r"num\.io\.threads"):
        local.start(Deadline(60))
    assert local.status().state == "stopped"


def test_a_broker_that_hangs_is_told_from_one_that_serves(own_broker: MakeBroker) -> None:
    local = own_broker()
    bootstrap = local.start(Deadline(60))
    assert local.pid is not None
    os.kill(local.pid, signal.SIGSTOP)
    try:
        assert local.status().state == "unreachable"
        with pytest.raises(DeadlineExceeded, match="to serve"):
            local.start(Deadline(2))
        started = time.monotonic()
        with pytest.raises(ConfigError, match="does not answer"):
            check_broker(KafkaConfig(), bootstrap, Deadline(30))
        assert time.monotonic() - started < 15
    finally:
        os.kill(local.pid, signal.SIGCONT)
    eventually(lambda: local.status().state == "running", SECONDS, "the return of the broker")


# The check before anything starts


def test_a_usable_broker_passes(broker: Broker) -> None:
    check_broker(broker.kafka, broker.bootstrap, Deadline(SECONDS))


def test_one_reachable_server_of_a_list_is_enough(broker: Broker) -> None:
    check_broker(broker.kafka, f"127.0.0.1:1,{broker.bootstrap}", Deadline(SECONDS))


class Listener:
    """A server on loopback that gives every connection the same answer and is no Kafka."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        held: list[socket.socket] = []
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                break
            held.append(connection)
            if self._answer is not None:
                connection.recv(4096)
                connection.sendall(self._answer)
                connection.close()
        for connection in held:
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SECONDS)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not Kafka.*HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46\x00", "wants TLS"),
        (b"", "closes the connection"),
        (None, "does not answer"),
    ],
)
def test_what_is_no_kafka_is_named_quickly(answer: bytes | None, cause: str) -> None:
    listener = Listener(answer)
    started = time.monotonic()
    try:
        with pytest.raises(ConfigError, match=cause) as caught:
            check_broker(KafkaConfig(), listener.address, Deadline(60))
    finally:
        listener.close()
    assert [problem.key for problem in caught.value.problems] == ["kafka.bootstrap_servers"]
    assert time.monotonic() - started < 15


def test_nobody_listening_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"nobody listens at 127\.0\.0\.1:1"):
        check_broker(KafkaConfig(), "127.0.0.1:1", Deadline(60))


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ConfigError, match="does not resolve"):
        check_broker(KafkaConfig(), "no-such-host.invalid:9092", Deadline(60))


def test_tls_to_a_plain_port_is_named(broker: Broker) -> None:
    kafka = KafkaConfig(security=SecurityConfig(protocol="SSL"))
    with pytest.raises(ConfigError, match="does not speak TLS"):
        check_broker(kafka, broker.bootstrap, Deadline(60))


def test_a_login_where_none_is_wanted_is_named(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_TEST_PASSWORD", "canary-3")
    security = SecurityConfig.model_validate(
        {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "username": "u", "password": "env:WEIR_TEST_PASSWORD"}
    )
    started = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        check_broker(KafkaConfig(security=security), broker.bootstrap, Deadline(60))
    assert "canary" not in str(caught.value)
    assert time.monotonic() - started < 15


LOGIN = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="broker" password="b" user_broker="b" user_learner="right";'
    ),
}


def test_a_wrong_password_is_named_quickly_and_the_right_one_passes(
    own_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_TEST_PASSWORD", "right")
    settings = {
        "protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "username": "learner",
        "password": "env:WEIR_TEST_PASSWORD",
    }
    kafka = KafkaConfig(security=SecurityConfig.model_validate(settings))
    bootstrap = own_broker(properties=LOGIN, client=security_settings(kafka.security)).start(Deadline(60))
    check_broker(kafka, bootstrap, Deadline(30))

    monkeypatch.setenv("WEIR_TEST_PASSWORD", "wrong-canary")
    started = time.monotonic()
    with pytest.raises(ConfigError, match=r"(?i)authentication failed.*check username, password") as caught:
        check_broker(kafka, bootstrap, Deadline(60))
    assert "canary" not in str(caught.value)
    with pytest.raises(ConfigError, match="whether it wants a login"):
        check_broker(KafkaConfig(), bootstrap, Deadline(60))
    assert time.monotonic() - started < 15
