"""The socket between rank 0 and its dispatcher process, on a real pair of sockets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from learner.link.channel import ALIVE, Answers, Link, LinkClosed, LinkSilent
from learner.link.client import DispatcherClient

JOIN_S = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    left, right = socket.socketpair()
    with closing(Link(left)) as rank, closing(Link(right)) as dispatcher:
        yield rank, dispatcher


@pytest.fixture
def raw() -> Iterator[tuple[Link, socket.socket]]:
    """One end as a link, the other as a bare socket."""
    left, right = socket.socketpair()
    with closing(Link(left)) as rank, right:
        yield rank, right


def meanwhile(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(JOIN_S)
    return not thread.is_alive()


def test_a_question_has_one_answer(ends: tuple[Link, Link]) -> None:
    rank, dispatcher = ends

    def answer() -> None:
        for _ in range(3):
            question = dispatcher.receive()
            dispatcher.send({"do": "batch", "op": question["op"], "step": question["step"] + 1})

    thread = meanwhile(answer)
    assert [rank.ask("next", step=step) for step in range(3)] == [{"do": "batch", "op": "next", "step": s + 1} for s in range(3)]
    assert ended(thread)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"offsets": {0: 17, 3: 2**40}, "failed": {}},
        {"text": "é", "none": None, "figures": [1.5, -1, True], "nested": {"a": [{"b": b"\x00\xff"}]}},
        {"nan": float("inf")},
    ],
)
def test_messages_arrive_as_they_were(ends: tuple[Link, Link], message: dict[str, Any]) -> None:
    ends[0].send(message)
    assert ends[1].receive() == message


def test_messages_larger_than_the_sockets_buffer_arrive_whole_and_in_order(ends: tuple[Link, Link]) -> None:
    records = [bytes([n]) * 3_000_000 for n in range(4)]

    def send_all() -> None:
        for record in records:
            ends[1].send({"records": [record]})

    thread = meanwhile(send_all)
    assert [ends[0].receive()["records"][0] for _ in records] == records
    assert ended(thread)


def test_a_message_in_pieces_is_one_message(raw: tuple[Link, socket.socket]) -> None:
    link, other = raw
    body = b"\x81\xa2op\xa4next"
    frame = struct.pack("<Q", len(body)) + body

    def dribble() -> None:
        for byte in frame:
            other.sendall(bytes([byte]))

    thread = meanwhile(dribble)
    assert link.receive() == {"op": "next"}
    assert ended(thread)


def test_when_one_end_closes_the_others_next_call_says_so(ends: tuple[Link, Link]) -> None:
    rank, dispatcher = ends
    dispatcher.close()
    with pytest.raises(LinkClosed, match="the other process has gone"):
        rank.receive()
    with pytest.raises(LinkClosed, match="the other process has gone"):
        rank.send({"op": "next"})
    with pytest.raises(LinkClosed):
        rank.ask("next")


def test_a_question_under_way_ends_when_the_other_end_closes(ends: tuple[Link, Link]) -> None:
    rank, dispatcher = ends

    def hear_and_go() -> None:
        dispatcher.receive()
        dispatcher.close()

    thread = meanwhile(hear_and_go)
    with pytest.raises(LinkClosed):
        rank.ask("next")
    assert ended(thread)


@pytest.mark.parametrize("sent", [b"", b"\x05\x00", struct.pack("<Q", 5), struct.pack("<Q", 5) + b"\x81\xa2"])
def test_an_end_that_dies_in_the_middle_of_a_message_has_gone(raw: tuple[Link, socket.socket], sent: bytes) -> None:
    link, other = raw
    other.sendall(sent)
    other.close()
    with pytest.raises(LinkClosed):
        link.receive()


def test_an_end_that_closed_itself_says_so(ends: tuple[Link, Link]) -> None:
    ends[0].close()
    for call in (ends[0].receive, lambda: ends[0].send({})):
        with pytest.raises(LinkClosed):
            call()


# --- a dispatcher that takes its time, and one that stands still ----------------------------------------------------------------


def test_while_an_answer_takes_long_the_dispatcher_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.link.channel.ALIVE_S", 0.01)
    left, right = socket.socketpair()
    with closing(Link(left, silence_s=20)) as rank, closing(Link(right)) as dispatcher:
        answers = Answers(dispatcher)
        heard = threading.Semaphore(0)

        def answer_after_signs() -> None:
            assert answers.question() == {"op": "manifest"}
            for _ in range(3):
                assert heard.acquire(timeout=JOIN_S)
            answers.answer({"done": True})

        thread = meanwhile(answer_after_signs)
        assert rank.ask("manifest", heard.release) == {"done": True}
        assert ended(thread)


@pytest.mark.parametrize("owing", [True, False])
def test_signs_of_life_come_only_while_an_answer_is_owed(owing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.link.channel.ALIVE_S", 0.01)
    left, right = socket.socketpair()
    with closing(Link(left, silence_s=20 if owing else 0.2)) as rank, closing(Link(right)) as dispatcher:
        answers = Answers(dispatcher, owing=owing)
        if owing:
            assert rank.receive() == ALIVE
            answers.answer({"hello": 1})
            assert rank.answer(lambda: None) == {"hello": 1}
        else:
            with pytest.raises(LinkSilent):
                rank.receive()


def test_a_sign_of_life_that_comes_after_the_answer_is_no_answer_to_the_next_question() -> None:
    left, right = socket.socketpair()
    with closing(Link(left)) as rank, closing(Link(right)) as dispatcher:
        dispatcher.send({"answer": 1})
        dispatcher.send(ALIVE)
        dispatcher.send({"answer": 2})
        assert [rank.ask("next"), rank.ask("next")] == [{"answer": 1}, {"answer": 2}]


def test_a_dispatcher_that_gives_no_sign_of_life_is_told_apart_from_one_that_has_gone() -> None:
    left, right = socket.socketpair()
    with (
        closing(Link(left, silence_s=0.05)) as rank,
        closing(Link(right)),
        pytest.raises(LinkSilent, match=r"nothing for 0\.05 s"),
    ):
        rank.ask("next")


def test_the_ranks_are_kept_alive_while_the_facts_of_a_checkpoint_take_long() -> None:
    left, right = socket.socketpair()
    with closing(Link(left)) as rank, closing(Link(right)) as dispatcher:
        client = DispatcherClient.__new__(DispatcherClient)  # its constructor starts a process
        client.save_link, told = rank, list[str]()
        client.alive = lambda: told.append("wait")
        client.ask_manifest_facts()
        assert dispatcher.receive() == {"op": "manifest"}
        for message in (ALIVE, ALIVE, {"uuid": "u"}):
            dispatcher.send(message)
        assert client.manifest_facts() == {"uuid": "u"}
        assert told == ["wait", "wait"]
