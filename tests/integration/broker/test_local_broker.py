"""The local broker over its life: started once, killed, stopped, taken for no other process, wrong, silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from broker_config.clients import admin as topics_admin
from broker_config.clients import settings as clients
from broker_config.clients.admin import LogBounds
from broker_config.clients.consuming import assign
from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.preflight import check_broker
from schemas.config.kafka import KafkaConfig
from schemas.errors import BrokerError, ConfigError, DeadlineExceeded
from tests.brokers import Broker
from tests.integration.broker.log_access import SECONDS, make_topics, publish, read
from tests.support import eventually

MakeBroker = Callable[..., LocalBroker]


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
