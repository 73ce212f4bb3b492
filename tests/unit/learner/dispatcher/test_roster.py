"""Who is there, what they hold, and who gets the next request."""

from __future__ import annotations

from typing import Any

import pytest

from learner.dispatcher.deciding.membership import disagreements
from learner.dispatcher.state.roster import Roster
from schemas.identity import Attempt
from schemas.records.status import ProducerState
from tests.fakes.records.make import in_hand, key, make_heartbeat, make_report


def make_roster(**producers: dict[str, Any]) -> Roster:
    """Producers with fields of `Producer` or of `Member`; each holds version 5 unless said otherwise."""
    roster = Roster(4)
    for name, fields in producers.items():
        producer = roster.join(make_report(name, held=5), 0)
        for field, value in {"state": ProducerState.SERVING, **fields}.items():
            if field == "busy":
                for slot in range(value):
                    roster.give(producer, "rollout", key(5, slot), 0)
            elif field == "draining":
                roster.drain(name)
            elif field in ("held", "digest"):
                roster.members.change(name, **{field: value})
            else:
                setattr(producer, field, value)
    roster.validate()
    return roster


def best(roster: Roster, version: int = 5, max_age: int = 1, exclude: tuple[str, ...] = (), **how: bool) -> str | None:
    candidates = roster.candidates(version, max_age, exact=how.get("exact", False), urgent=how.get("urgent", False))
    found = candidates.best(exclude)
    return found.name if found else None


def test_newcomers_are_spread_over_the_request_partitions() -> None:
    roster = Roster(2)
    given = [roster.join(make_report(f"p{i}"), 0).member.requests_partition for i in range(5)]
    assert given == [0, 1, 0, 1, 0]
    roster.remove("p1")
    assert roster.join(make_report("p5"), 0).member.requests_partition == 1


def test_a_producer_keeps_the_partition_that_it_reads() -> None:
    roster = Roster(4)
    roster.join(make_report("p0"), 0)
    assert roster.join(make_report("p0"), 1).member.requests_partition == 0
    assert roster.join(make_report("p1", requests_partition=3), 0).member.requests_partition == 3
    assert roster.join(make_report("p1"), 1).member.requests_partition == 3


@pytest.mark.parametrize(("held", "able"), [(2, False), (3, True), (5, True), (6, False), (-1, False)])
def test_work_goes_to_acknowledged_weights_between_t_minus_a_and_t(held: int, able: bool) -> None:
    assert (best(make_roster(p0={"held": held}), version=5, max_age=2) == "p0") is able


def test_no_age_bound_lets_a_producer_without_weights_work() -> None:
    assert best(make_roster(p0={"held": -1}), version=1, max_age=4) is None


def test_validation_goes_to_exactly_its_weights() -> None:
    roster = make_roster(p0={"held": 4}, p1={"held": 5, "busy": 3})
    assert best(roster, exact=True) == "p1"
    assert best(roster, version=6, exact=True) is None


@pytest.mark.parametrize("field", [{"draining": True}, {"state": ProducerState.LEAVING}])
def test_who_leaves_gets_nothing(field: dict[str, Any]) -> None:
    assert best(make_roster(p0=field)) is None


def test_capacity_is_counted_by_what_was_given_and_an_urgent_request_may_exceed_it_by_one() -> None:
    roster = make_roster(p0={"busy": 3})
    assert best(roster) == "p0"
    roster.give(roster.producers["p0"], "rollout", key(5, 3), 0)
    assert best(roster) is None
    assert best(roster, urgent=True) == "p0"
    roster.give(roster.producers["p0"], "rollout", key(5, 4), 0)
    assert best(roster, urgent=True) is None
    roster.validate()


def test_what_is_taken_back_makes_room() -> None:
    roster = make_roster(p0={"busy": 4})
    roster.take("p0", "rollout", key(5, 1))
    assert best(roster) == "p0"
    roster.take("nobody", "rollout", key(5, 1))


def test_the_emptiest_is_first_then_the_newest_weights_then_the_name() -> None:
    assert best(make_roster(p0={"busy": 2}, p1={"busy": 1})) == "p1"
    assert best(make_roster(p0={"held": 4}, p1={"held": 5})) == "p1"
    assert best(make_roster(p1={}, p0={})) == "p0"
    assert best(make_roster(p0={}, p1={}), exclude=("p0",)) == "p1"


def test_shares_follow_the_token_rates() -> None:
    roster = make_roster(slow={"tokens_per_beat": 10.0, "capacity": 100}, fast={"tokens_per_beat": 30.0, "capacity": 100})
    given = {"slow": 0, "fast": 0}
    for slot in range(40):
        name = best(roster)
        assert name is not None
        given[name] += 1
        roster.give(roster.producers[name], "rollout", key(5, slot), 0)
    assert given == {"slow": 10, "fast": 30}


def test_a_suspect_gets_nothing_while_there_is_another_even_a_full_one() -> None:
    roster = make_roster(p0={"suspect": True}, p1={"busy": 4})
    assert best(roster) is None
    assert best(make_roster(p0={"suspect": True}, p1={"suspect": True})) == "p0"
    assert best(make_roster(p0={"suspect": True}, p1={"held": 1})) == "p0"


def test_suspicion_ends_when_the_engine_generates_again() -> None:
    roster = make_roster(p0={"suspect": True})
    for tokens, suspect in [(100, True), (100, True), (101, False)]:
        roster.heartbeat(make_heartbeat("p0", engine_tokens=tokens), 1)
        assert roster.producers["p0"].suspect is suspect


def test_heartbeats_change_neither_weights_nor_what_was_given() -> None:
    """They may be older than an acknowledgement or a request that is on its way."""
    roster = make_roster(p0={"busy": 2, "digest": "w5"})
    roster.heartbeat(make_heartbeat("p0", held=9, digest="other", work=[]), 3)
    producer = roster.producers["p0"]
    assert (producer.held, producer.member.digest, len(producer.assigned), producer.last_beat) == (5, "w5", 2, 3)


def test_a_stranger_has_no_heartbeat() -> None:
    assert Roster(1).heartbeat(make_heartbeat("p9"), 1) is None


def test_the_rate_is_of_the_time_in_the_roster() -> None:
    roster = make_roster(p0={})
    producer = roster.producers["p0"]
    roster.heartbeat(make_heartbeat("p0", engine_tokens=10**9), 1)
    assert producer.tokens_per_beat == 0
    roster.heartbeat(make_heartbeat("p0", engine_tokens=10**9 + 40), 3)
    assert producer.tokens_per_beat == pytest.approx(0.3 * 20)
    roster.heartbeat(make_heartbeat("p0", engine_tokens=5), 4)  # the engine started again
    assert producer.tokens_per_beat == pytest.approx(6)  # and it had nothing to do meanwhile
    roster.give(producer, "rollout", key(5, 0), 4)
    roster.heartbeat(make_heartbeat("p0", engine_tokens=5), 5)
    assert producer.tokens_per_beat == pytest.approx(0.7 * 6)


def stalled(roster: Roster, beat: int, limit: int = 10) -> list[Attempt]:
    return [at for _, at in roster.producers["p0"].stalled(beat, limit)]


def test_a_request_stalls_when_its_tokens_do_not_grow_however_long_it_takes() -> None:
    roster = make_roster(p0={"busy": 2})
    for beat in range(1, 40):
        work = [in_hand(key(5, 0), tokens=beat), in_hand(key(5, 1), tokens=7)]
        roster.heartbeat(make_heartbeat("p0", work=work), beat)
        assert stalled(roster, beat) == ([key(5, 1)] if beat >= 11 else [])


def test_tokens_of_requests_that_were_not_given_mean_nothing() -> None:
    roster = make_roster(p0={})
    roster.heartbeat(make_heartbeat("p0", work=[in_hand(key(5, 0), tokens=3)]), 1)
    assert roster.producers["p0"].tokens_of == {}


def test_leases_count_beats_since_the_last_heartbeat() -> None:
    roster = make_roster(p0={}, p1={})
    roster.heartbeat(make_heartbeat("p1"), 3)
    assert [p.name for p in roster.lapsed(4, 4)] == []
    assert [p.name for p in roster.lapsed(5, 4)] == ["p0"]
    assert [p.name for p in roster.lapsed(8, 4)] == ["p0", "p1"]


def test_members_are_published_as_the_dispatcher_knows_them() -> None:
    members = make_roster(p1={"digest": "w5"}, p0={"held": 3}).members
    assert set(members) == {"p0", "p1"}
    assert (members["p0"].held, members["p1"].digest, members["p1"].requests_partition) == (3, "w5", 0)


def test_holding_weights_means_version_and_digest() -> None:
    producer = make_roster(p0={"digest": "w5"}).producers["p0"]
    assert producer.holds(5, "w5")
    assert not producer.holds(5, "other") and not producer.holds(4, "w5") and not producer.holds(None, "w5")


def test_disagreements_name_each_key_with_both_values() -> None:
    report = make_report(agreed={"a": 1, "b": 2, "only": 3}, digests={"model": "x", "environment": "e"})
    assert disagreements(report, {"a": 1, "b": 5, "missing": None}, {"model": "m", "tokenizer": "t"}) == [
        "b: learner has 5, producer has 2; use the same config file for both",
        "only: learner has None, producer has 3; use the same config file for both",
        "model: learner has m, producer has x; use the same files on both hosts",
        "tokenizer: learner has t, producer has None; use the same files on both hosts",
    ]


def test_a_producer_joins_as_it_reports_itself_at_the_present_beat() -> None:
    producer = Roster(1).join(make_report("p0", state=ProducerState.PAUSED, capacity=7, engine_world_size=2), 12)
    assert (producer.state, producer.capacity, producer.world_size) == (ProducerState.PAUSED, 7, 2)
    assert (producer.joined_beat, producer.last_beat) == (12, 12)


@pytest.mark.parametrize(("silent", "share"), [(0, 1.0), (3, 1.0), (4, 3 / 4), (6, 1 / 2), (30, 1 / 10)])
def test_a_rate_counts_less_the_longer_its_producer_is_silent(silent: int, share: float) -> None:
    producer = make_roster(p0={"tokens_per_beat": 40.0, "last_beat": 100}).producers["p0"]
    assert producer.rate(100 + silent) == pytest.approx(40.0 * share)


def test_who_falls_silent_becomes_slow() -> None:
    measured = {"tokens_per_beat": 30.0, "measured": 5}
    roster = make_roster(p0={**measured, "last_beat": 10}, p1={**measured, "last_beat": 40}, p2={**measured, "last_beat": 40})
    assert roster.slow(12, 0.5) == set()
    assert roster.slow(40, 0.5) == {"p0"}


def test_slow_means_below_the_share_of_the_median_of_at_least_two() -> None:
    def slow(*rates: float, measured: int = 5) -> set[str]:
        fields = {f"p{i}": {"tokens_per_beat": rate, "measured": measured} for i, rate in enumerate(rates)}
        return make_roster(**fields).slow(0, 0.5)

    assert slow(1.0) == set()
    assert slow(1.0, 100.0) == {"p0"}
    assert slow(10.0, 20.0, 20.0) == set(), "exactly half is not slow"
    assert slow(9.9, 20.0, 20.0) == {"p0"}
    assert slow(1.0, 20.0, 20.0, measured=4) == set()


def test_two_heartbeats_within_a_beat_count_as_one_beat() -> None:
    roster = make_roster(p0={"busy": 1})
    roster.heartbeat(make_heartbeat("p0", engine_tokens=0), 3)
    roster.heartbeat(make_heartbeat("p0", engine_tokens=10), 3)
    roster.heartbeat(make_heartbeat("p0", engine_tokens=20), 4)
    assert roster.producers["p0"].tokens_per_beat == pytest.approx(0.3 * 10 + 0.3 * (10 - 3))


def test_a_changed_capacity_makes_room_or_takes_it() -> None:
    roster = make_roster(p0={"busy": 2})
    roster.heartbeat(make_heartbeat("p0", capacity=2), 1)
    assert (roster.producers["p0"].capacity, best(roster)) == (2, None)
    roster.validate()
    roster.heartbeat(make_heartbeat("p0", capacity=3), 2)
    assert best(roster) == "p0"
    roster.validate()


def test_the_first_heartbeat_that_names_a_request_is_progress_though_it_has_no_token_yet() -> None:
    roster = make_roster(p0={"busy": 1})
    for beat in (5, 9):
        roster.heartbeat(make_heartbeat("p0", work=[in_hand(key(5, 0), tokens=0)]), beat)
    assert stalled(roster, 14) == [] and stalled(roster, 15) == [key(5, 0)]


def test_what_is_given_again_later_starts_anew() -> None:
    roster = make_roster(p0={"busy": 1})
    roster.heartbeat(make_heartbeat("p0", work=[in_hand(key(5, 0), tokens=50)]), 1)
    roster.take("p0", "rollout", key(5, 0))
    producer = roster.producers["p0"]
    assert not producer.tokens_of and not producer.progress_beat
    roster.give(producer, "rollout", key(5, 0), 20)
    roster.heartbeat(make_heartbeat("p0", work=[in_hand(key(5, 0), tokens=3)]), 25)
    assert stalled(roster, 34) == []


def test_an_engine_that_loaded_weights_is_not_suspect_any_more() -> None:
    roster = make_roster(p0={"suspect": True, "failed_rounds": 2})
    roster.loaded("p0", 6, "w6")
    producer = roster.producers["p0"]
    assert (producer.suspect, producer.failed_rounds, producer.held, producer.member.digest) == (False, 0, 6, "w6")
    roster.loaded("nobody", 6, "w6")


def test_draining_is_known_by_name_and_a_stranger_cannot_drain() -> None:
    roster = make_roster(p0={})
    assert roster.drain("p0") is True and roster.drain("p9") is False
    assert roster.draining == {"p0"}


def test_a_draining_producer_is_dismissed_once_it_has_nothing_in_hand_and_nobody_waits_for_it() -> None:
    roster = make_roster(p0={"busy": 1}, p1={})
    roster.drain("p0")
    roster.dismiss_idle()
    assert not roster.members["p0"].dismissed
    roster.take("p0", "rollout", key(5, 0))
    roster.dismiss_idle(busy={"p0"})
    assert not roster.members["p0"].dismissed
    roster.dismiss_idle()
    assert roster.members["p0"].dismissed and not roster.members["p1"].dismissed


def test_a_full_suspect_gets_nothing_urgent_while_another_is_trusted() -> None:
    roster = make_roster(p0={"suspect": True, "busy": 4}, p1={"busy": 4})
    assert best(roster, urgent=True) == "p1"
    assert best(make_roster(p0={"suspect": True, "busy": 4}), urgent=True) == "p0"
    assert best(make_roster(p0={"busy": 4})) is None, "nothing that is not urgent goes over the capacity"


def test_only_who_could_do_the_work_is_a_trusted_alternative() -> None:
    roster = make_roster(p0={"suspect": True}, p1={"held": 4})
    assert best(roster, exact=True) == "p0"
    assert best(roster) == "p1"


def test_members_are_copied_when_they_change_and_only_then() -> None:
    """Whoever kept the mapping of an earlier moment finds out by comparing."""
    roster = make_roster(p0={}, p1={})
    before = roster.members.present
    roster.members.change("p0", held=5)
    assert roster.members.present is before
    roster.loaded("p0", 6, "w6")
    assert before["p0"].held == 5 and roster.members.present["p0"].held == 6
    roster.remove("p1")
    assert set(before) == {"p0", "p1"} and set(roster.members) == {"p0"} and len(roster.members) == 1
