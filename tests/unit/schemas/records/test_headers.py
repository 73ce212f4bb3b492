"""Record headers: what a person sees without decoding a value."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import group as groups
from schemas.records import seal as seals
from schemas.records.group import FinishReason
from schemas.records.headers import GIST_BYTES, as_mapping, of_group, of_seal
from schemas.records.seal import Seal, SealedSlot
from tests.fakes.records.groups import make_group, make_multi_turn, make_trajectory
from tests.fakes.records.make import UUID, digest_of


def test_headers_of_a_group_start_with_the_gist_and_name_the_bytes() -> None:
    group = make_group(trajectories=(make_multi_turn(), make_trajectory(rewards=0.25, finish=FinishReason.LENGTH)))
    value = groups.encode(group)
    headers = of_group(group, value)
    assert [name for name, _ in headers] == ["gist", "kind", "schema", "run", "sha256", "content_sha256", "producer"]
    found = as_mapping(headers)
    assert json.loads(found["gist"]) == {
        "reward": 0.75,
        "rewards": [1.25, 0.25],
        "len": [7, 3],
        "finish": {"length": 1, "stop": 1},
        "versions": [11, 12],
        "row": group.row,
    }
    assert found["sha256"].decode() == hashlib.sha256(value).hexdigest()
    assert found["content_sha256"].decode() == groups.content_sha256(group)
    assert found["kind"] == b"rollout"


def test_headers_of_a_seal() -> None:
    sha = digest_of("x")
    seal = Seal(UUID, 4, "c", 12, {0: SealedSlot(0, 0, 0, 5, sha, sha), 1: SealedSlot(1, 1, 0, 6, sha, sha)})
    value = seals.encode(seal)
    found = as_mapping(of_seal(seal, value))
    assert list(found) == ["gist", "kind", "schema", "run", "sha256"]
    assert json.loads(found["gist"]) == {"slots": 2, "later_draws": 1, "later_attempts": 1, "incarnation": 4}


def test_a_long_list_is_shown_by_its_ends_and_mean() -> None:
    many = tuple(make_trajectory(rewards={"a": float(i % 3)}, finish=FinishReason.LENGTH) for i in range(30))
    gist = json.loads(as_mapping(of_group(make_group(trajectories=many), b""))["gist"])
    assert gist["rewards"] == [0, 1, 2]
    assert gist["len"] == [3, 3, 3]
    assert gist["finish"] == {"length": 30}


def test_every_header_is_ascii_and_the_gist_is_one_bounded_line() -> None:
    short = make_trajectory(10**300, tokens=[1])
    group = make_group(trajectories=(short,) * 16)
    for _, value in of_group(group, b""):
        assert value.isascii() and b"\n" not in value and len(value) <= GIST_BYTES


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(), min_size=1, max_size=20), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_gist_is_whole_json_whatever_the_rewards(rewards: list[float], row: int, version: int) -> None:
    members = tuple(make_trajectory(version, rewards=reward) for reward in rewards)
    name, gist = of_group(make_group(row=row, trajectories=members), b"")[0]
    assert name == "gist"
    assert gist.isascii() and b"\n" not in gist and len(gist) <= GIST_BYTES
    found = json.loads(gist, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (found["row"], found["versions"]) == (row, [version, version])
    assert len(found["rewards"]) == (len(rewards) if len(rewards) <= 16 else 3)


def test_sixteen_rewards_are_listed_and_seventeen_are_not() -> None:
    for count, listed in ((16, [i / 4 for i in range(16)]), (17, [0, 2, 4])):
        members = tuple(make_trajectory(rewards={"a": i / 4}) for i in range(count))
        assert json.loads(of_group(make_group(trajectories=members), b"")[0][1])["rewards"] == listed


def test_rewards_that_will_be_refused_still_show_in_the_gist() -> None:
    members = (make_trajectory(rewards={"a": float("nan")}), make_trajectory(rewards={"a": -1e300}))
    gist = json.loads(of_group(make_group(trajectories=members), b"")[0][1])
    assert (gist["reward"], gist["rewards"]) == ("nan", ["nan", -1e300])


def test_a_group_without_anything_generated_has_a_gist_too() -> None:
    assert json.loads(of_group(make_group(trajectories=(make_trajectory(spans=()),)), b"")[0][1])["versions"] == []
    assert json.loads(of_group(make_group(trajectories=()), b"")[0][1])["rewards"] == []


def test_the_first_header_of_a_name_counts() -> None:
    assert as_mapping([("a", b"1"), ("a", b"2"), ("b", None)]) == {"a": b"1", "b": b""}
    assert as_mapping(None) == {}
