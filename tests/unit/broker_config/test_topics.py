from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config import topics
from broker_config.topics import TopicName, Topics
from schemas.config.kafka import KafkaConfig

run_ids = st.from_regex(topics.RUN_ID, fullmatch=True)
versions = st.integers(0, topics.MAX_VERSION)


def test_names_are_the_documented_ones() -> None:
    names = Topics("tiny-20260101")
    assert names.control == "tiny-20260101.control"
    assert names.status == "tiny-20260101.status"
    assert names.requests == "tiny-20260101.requests"
    assert names.quarantine == "tiny-20260101.quarantine"
    assert names.metrics == "tiny-20260101.metrics"
    assert names.trajectories(12) == "tiny-20260101.trajectories.v00000012"
    assert names.validation(0) == "tiny-20260101.validation.v00000000"


@pytest.mark.parametrize("run_id", ["", "a.b", "a_b", "Run", "x" * 65, "run\n", "ä"])
def test_a_run_id_that_could_clash_is_refused(run_id: str) -> None:
    with pytest.raises(ValueError, match="run id"):
        Topics(run_id)


@pytest.mark.parametrize("version", [-1, 100_000_000])
def test_a_version_that_breaks_the_order_of_names_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match="version"):
        Topics("r").trajectories(version)


@given(run_ids, versions)
def test_parse_undoes_naming(run_id: str, version: int) -> None:
    names = Topics(run_id)
    assert topics.parse(names.trajectories(version)) == TopicName(run_id, "trajectories", version)
    assert topics.parse(names.validation(version)) == TopicName(run_id, "validation", version)
    assert topics.parse(names.control) == TopicName(run_id, "control")
    assert topics.parse(names.requests) == TopicName(run_id, "requests")


@given(versions, versions)
def test_the_order_of_names_is_the_order_of_versions(one: int, other: int) -> None:
    names = Topics("r")
    assert (names.trajectories(one) < names.trajectories(other)) == (one < other)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "control",
        "r.controls",
        "r.control.v00000001",
        "r.trajectories",
        "r.trajectories.v1",
        "r.trajectories.v000000001",
        "__consumer_offsets",
    ],
)
def test_a_foreign_name_is_none_of_ours(name: str) -> None:
    assert topics.parse(name) is None


def test_every_topic_keeps_its_records_and_is_stamped_by_the_broker() -> None:
    kafka = KafkaConfig(max_record_mib=4)
    specs = [*topics.specs_for_run("r", kafka).values(), topics.version_spec("r", "trajectories", 0, kafka)]
    for spec in specs:
        assert spec.config["retention.ms"] == "-1"
        assert spec.config["cleanup.policy"] == "delete"
        assert spec.config["message.timestamp.type"] == "LogAppendTime"
        assert spec.config["max.message.bytes"] == str(5 * 1024 * 1024)
        assert spec.config["unclean.leader.election.enable"] == "false"


def test_partitions_come_from_the_config() -> None:
    kafka = KafkaConfig(partitions=4, request_partitions=3, replication_factor=3, min_insync_replicas=2)
    specs = topics.specs_for_run("r", kafka)
    assert {kind: spec.partitions for kind, spec in specs.items()} == {
        "control": 1,
        "status": 1,
        "requests": 3,
        "quarantine": 1,
        "metrics": 1,
    }
    assert topics.version_spec("r", "validation", 7, kafka).partitions == 4
    assert {spec.replication_factor for spec in specs.values()} == {3}
    assert {spec.config["min.insync.replicas"] for spec in specs.values()} == {"2"}


def test_the_largest_record_fits_into_one_broker_request() -> None:
    socket_request_max_bytes = 104_857_600  # the broker's default
    assert topics.max_message_bytes(KafkaConfig(max_record_mib=90)) < socket_request_max_bytes
