"""What can be said of the local broker without starting one."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker_config.deadline import Deadline
from broker_config.local import artifacts, installation, ports
from broker_config.local.broker import LocalBroker
from broker_config.local.installation import Installation, installed
from broker_config.local.server_properties import server_properties
from broker_config.local.tools import TOOLS, write_wrappers
from broker_config.locate import bootstrap_servers, configured_servers, on_loopback
from broker_config.preflight import parse_servers
from broker_config.processes import ProcessId, file_lock
from schemas.config.kafka import KafkaConfig
from schemas.errors import BrokerError, ConfigError, DeadlineExceeded


def test_every_artifact_is_pinned_once_with_its_digest() -> None:
    pinned = artifacts.artifacts()
    assert len(pinned) == 92
    assert len({artifact.file_name for artifact in pinned}) == 92
    assert all(re.fullmatch(r"[0-9a-f]{64}", artifact.sha256) for artifact in pinned)
    assert {a.version for a in pinned if a.group == "org.apache.kafka"} == {"4.4.0"}


def test_the_broker_listens_on_loopback_alone() -> None:
    properties = server_properties(Path("/data"), 29092, 29093, {})
    for listener in properties["listeners"].split(","):
        assert "://127.0.0.1:" in listener
    assert properties["auto.create.topics.enable"] == "false"


def test_given_properties_win() -> None:
    assert server_properties(Path("/data"), 1, 2, {"num.io.threads": "7"})["num.io.threads"] == "7"


def test_ports_are_free_distinct_and_outside_the_ephemeral_range() -> None:
    found = ports.free_ports(3)
    assert len(set(found)) == 3
    assert all(ports.LOW <= port < ports.ephemeral_low() for port in found)


def test_a_bound_port_is_not_free() -> None:
    [port] = ports.free_ports(1, first=25000)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        assert not ports.is_free(port)
        assert port not in ports.free_ports(2, first=port)
    assert ports.is_free(port)


def test_a_taken_port_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_config.local.broker.install", lambda say: Installation(Path("/java"), ()))
    [port] = ports.free_ports(1, first=25000)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        with pytest.raises(ConfigError, match=f"{port}: another process listens on it"):
            LocalBroker(tmp_path, port=port).start(Deadline(5))


def test_a_process_is_known_by_its_start_time_too() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None and me.alive()
    assert not ProcessId(me.pid, "another boot/123").alive()
    assert not ProcessId(me.pid, "another boot/123").send(__import__("signal").SIGKILL)


def test_an_ended_process_that_is_not_reaped_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    identity = ProcessId.of(child.pid)
    assert identity is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, still a zombie
    assert not identity.alive()
    child.wait()


def test_a_lock_is_held_by_one_and_freed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with (
        file_lock(path, Deadline(1), "a"),
        pytest.raises(DeadlineExceeded, match="for the other one"),
        file_lock(path, Deadline(0), "the other one"),
    ):
        pass
    with file_lock(path, Deadline(0), "again"):
        pass


def test_a_folder_where_nothing_ran_is_stopped(tmp_path: Path) -> None:
    local = LocalBroker(tmp_path)
    assert local.status().state == "stopped"
    assert local.bootstrap is None
    assert not local.stop(Deadline(1))
    assert not local.kill()


def test_the_config_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "env:1")
    assert configured_servers(KafkaConfig(bootstrap_servers="config:1")) == "config:1"
    assert configured_servers(KafkaConfig()) == "env:1"
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS")
    assert configured_servers(KafkaConfig()) is None


def test_a_local_broker_that_does_not_run_is_an_error_when_it_must_not_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="weir broker start"):
        bootstrap_servers(KafkaConfig(), Deadline(5), start_local=False)


def test_loopback_is_known() -> None:
    assert on_loopback("127.0.0.1:1,localhost:2")
    assert not on_loopback("127.0.0.1:1,kafka.example:2")


@pytest.mark.parametrize("servers", ["", "host", "host:", ":9092", "host:x", "host:0", "host:70000", "a:1,,b:2"])
def test_a_malformed_server_list_is_one_problem(servers: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_servers(servers)
    assert [problem.key for problem in caught.value.problems] == ["kafka.bootstrap_servers"]


def test_a_kafka_home_without_kafka_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="KAFKA_HOME"):
        installed()


def test_a_failed_download_says_what_and_how_to_retry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEIR_MAVEN_MIRROR", "http://127.0.0.1:9/none")
    monkeypatch.setattr(artifacts, "TRIES", 1)
    with pytest.raises(BrokerError, match=r"could not download Kafka's jars: .*\.jar(.|\n)*fetch"):
        artifacts.fetch(tmp_path, lambda line: None)
    assert not artifacts.libs_folder(tmp_path).exists()


def test_wrappers_quote_their_paths_and_name_the_broker_only_where_one_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "a folder with spaces"
    monkeypatch.setenv("WEIR_CACHE", str(cache))
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    java = cache / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    java.chmod(0o755)
    folder = write_wrappers(Installation(java, (cache / "one.jar",)))
    assert sorted(file.name for file in folder.glob("*.sh")) == sorted(TOOLS)

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([folder / name, *arguments], capture_output=True, text=True, check=False)

    unknown = run("kafka-topics.sh", "--list")
    assert unknown.returncode == 2 and "weir broker start" in unknown.stderr
    record = cache / "kafka" / "broker" / "bootstrap"
    record.parent.mkdir(parents=True)
    record.write_text("127.0.0.1:29092\n")
    filled = run("kafka-topics.sh", "--describe", "--topic", "a b").stdout.splitlines()
    assert filled[-5:] == ["--bootstrap-server", "127.0.0.1:29092", "--describe", "--topic", "a b"]
    assert str(cache / "one.jar") in filled
    given = run("kafka-topics.sh", "--list", "--bootstrap-server", "h:1").stdout.splitlines()
    assert given[-3:] == ["--list", "--bootstrap-server", "h:1"]
    assert run("kafka-dump-log.sh", "--files", "x").stdout.splitlines()[-2:] == ["--files", "x"]


def test_the_class_archive_belongs_to_one_java_and_one_list_of_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path))
    java = tmp_path / "java"
    java.write_text("")
    one = installation.Installation(java, (tmp_path / "one.jar",))
    other = installation.Installation(java, (tmp_path / "other.jar",))
    assert one.archive != other.archive
    assert one.archive == installation.Installation(java, (tmp_path / "one.jar",)).archive
