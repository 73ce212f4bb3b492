"""The socket between rank 0 and its dispatcher process, on a real pair of sockets."""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from learner.link.channel import Answers, Link, LinkClosed, LinkSilent
from learner.link.client import DispatcherClient
from learner.link.messages import (
    Alive,
    CheckpointSaved,
    ClaimWon,
    Done,
    FenceQuestion,
    KeepWaiting,
    ManifestFacts,
    ManifestQuestion,
    Message,
    NextAnswer,
    NextQuestion,
    RendezvousOpen,
    RunRefused,
    StepOutcome,
    TrainVersion,
    ValidationFigures,
    VersionTrained,
)
from schemas.errors import ConfigError, LostData, ProtocolError
from schemas.weights.transports.protocol import Rendezvous
from tests.support import eventually

JOIN_S = 20.0
FACTS = ManifestFacts("u", 3, control=1, status=2, requests={0: 5}, metrics=0, topic_ids={})


def batch(*records: bytes) -> NextAnswer:
    work = TrainVersion(7, records, seal_offset=9, catch_up=False, offsets={0: 17, 3: 2**40}, counters={"dispatch/lead": 1.0})
    return NextAnswer(work, [ValidationFigures(6, {"validation/accuracy": 0.5})])


def frame(message: Message) -> bytes:
    body = pickle.dumps(message)
    return struct.pack("!i", len(body)) + body


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
        for number in range(3):
            assert dispatcher.receive() == NextQuestion()
            dispatcher.send(NextAnswer(KeepWaiting(f"answer {number}")))

    thread = meanwhile(answer)
    assert [rank.ask(NextQuestion(), NextAnswer).work for _ in range(3)] == [KeepWaiting(f"answer {n}") for n in range(3)]
    assert ended(thread)


@pytest.mark.parametrize(
    "message",
    [
        Done(),
        VersionTrained(3, waited=True),
        RendezvousOpen([Rendezvous("höst", 2**16 - 1, "p"), Rendezvous("h", 1, "p", "id")]),
        StepOutcome(4, 5, {0: 17, 3: 2**40}, None, "w", {"nan": float("inf"), "x": -1.5}),
        CheckpointSaved(4, {"control": 1}, {0: 2}),
        FACTS,
        batch(b"\x00\xff"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_arrive_as_they_were(ends: tuple[Link, Link], message: Message) -> None:
    ends[0].send(message)
    assert ends[1].receive() == message


def test_messages_larger_than_the_sockets_buffer_arrive_whole_and_in_order(ends: tuple[Link, Link]) -> None:
    records = [bytes([n]) * 3_000_000 for n in range(4)]

    def send_all() -> None:
        for record in records:
            ends[1].send(batch(record))

    thread = meanwhile(send_all)
    assert [ends[0].answer(NextAnswer) for _ in records] == [batch(record) for record in records]
    assert ended(thread)


def test_a_message_in_pieces_is_one_message(raw: tuple[Link, socket.socket]) -> None:
    link, other = raw

    def dribble() -> None:
        for byte in frame(FenceQuestion()):
            other.sendall(bytes([byte]))

    thread = meanwhile(dribble)
    assert link.receive() == FenceQuestion()
    assert ended(thread)


def test_when_one_end_closes_the_others_next_call_says_so(ends: tuple[Link, Link]) -> None:
    rank, dispatcher = ends
    dispatcher.close()
    with pytest.raises(LinkClosed, match="the other process has gone"):
        rank.receive()
    with pytest.raises(LinkClosed, match="the other process has gone"):
        rank.send(NextQuestion())
    with pytest.raises(LinkClosed):
        rank.ask(NextQuestion(), NextAnswer)


def test_a_question_under_way_ends_when_the_other_end_closes(ends: tuple[Link, Link]) -> None:
    rank, dispatcher = ends

    def hear_and_go() -> None:
        dispatcher.receive()
        dispatcher.close()

    thread = meanwhile(hear_and_go)
    with pytest.raises(LinkClosed):
        rank.ask(NextQuestion(), NextAnswer)
    assert ended(thread)


@pytest.mark.parametrize("sent", [b"", b"\x00\x00", frame(Done())[:4], frame(Done())[:6]])
def test_an_end_that_dies_in_the_middle_of_a_message_has_gone(raw: tuple[Link, socket.socket], sent: bytes) -> None:
    link, other = raw
    other.sendall(sent)
    other.close()
    with pytest.raises(LinkClosed):
        link.receive()


def test_an_end_that_closed_itself_says_so(ends: tuple[Link, Link]) -> None:
    ends[0].close()
    for call in (ends[0].receive, lambda: ends[0].send(Done())):
        with pytest.raises(LinkClosed):
            call()


def test_a_link_is_closed_under_a_thread_that_waits_for_its_next_message(ends: tuple[Link, Link]) -> None:
    link, outcome = ends[0], list[Exception]()

    def wait() -> None:
        try:
            link.receive()
        except LinkClosed as closed:
            outcome.append(closed)

    thread = meanwhile(wait)
    eventually(link._receiving.locked, JOIN_S, "the thread to wait")
    link.close()
    assert ended(thread) and len(outcome) == 1


def test_an_answer_of_another_kind_is_our_own_mistake(ends: tuple[Link, Link]) -> None:
    ends[1].send(Done())
    with pytest.raises(ProtocolError, match="answered Done, expected was NextAnswer"):
        ends[0].answer(NextAnswer)


@pytest.mark.parametrize(("lost_data", "error"), [(True, LostData), (False, ConfigError)])
def test_a_run_that_cannot_be_served_is_refused_in_place_of_any_answer(
    ends: tuple[Link, Link], lost_data: bool, error: type[Exception]
) -> None:
    ends[1].send(RunRefused("slot 3 is lost", lost_data))
    with pytest.raises(error, match="slot 3 is lost"):
        ends[0].ask(NextQuestion(), NextAnswer)


# --- a dispatcher that takes its time, and one that stands still ----------------------------------------------------------------


def test_while_an_answer_takes_long_the_dispatcher_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.link.channel.ALIVE_S", 0.01)
    left, right = socket.socketpair()
    with closing(Link(left, silence_s=20)) as rank, closing(Link(right)) as dispatcher:
        answers = Answers(dispatcher)
        heard = threading.Semaphore(0)

        def answer_after_signs() -> None:
            assert answers.question() == ManifestQuestion()
            for _ in range(3):
                assert heard.acquire(timeout=JOIN_S)
            answers.answer(FACTS)

        thread = meanwhile(answer_after_signs)
        assert rank.ask(ManifestQuestion(), ManifestFacts, heard.release) == FACTS
        assert ended(thread)


@pytest.mark.parametrize("owing", [True, False])
def test_signs_of_life_come_only_while_an_answer_is_owed(owing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.link.channel.ALIVE_S", 0.01)
    left, right = socket.socketpair()
    with closing(Link(left, silence_s=20 if owing else 0.2)) as rank, closing(Link(right)) as dispatcher:
        answers = Answers(dispatcher, owing=owing)
        if owing:
            assert rank.receive() == Alive()
            answers.answer(ClaimWon("u", 3))
            assert rank.answer(ClaimWon) == ClaimWon("u", 3)
        else:
            with pytest.raises(LinkSilent):
                rank.receive()


def test_a_sign_of_life_that_comes_after_the_answer_is_no_answer_to_the_next_question(ends: tuple[Link, Link]) -> None:
    rank, dispatcher = ends
    dispatcher.send(Done())
    dispatcher.send(Alive())
    dispatcher.send(FACTS)
    assert rank.ask(FenceQuestion(), Done) == Done()
    assert rank.ask(ManifestQuestion(), ManifestFacts) == FACTS


def test_a_dispatcher_that_gives_no_sign_of_life_is_told_apart_from_one_that_has_gone() -> None:
    left, right = socket.socketpair()
    with (
        closing(Link(left, silence_s=0.05)) as rank,
        closing(Link(right)),
        pytest.raises(LinkSilent, match=r"nothing for 0\.05 s"),
    ):
        rank.ask(NextQuestion(), NextAnswer)


@pytest.mark.parametrize("sent", [b"\x00\x00", frame(FACTS)[:-1]], ids=["length", "body"])
def test_one_that_stands_still_in_the_middle_of_a_message_is_noticed_too(sent: bytes) -> None:
    left, right = socket.socketpair()
    with closing(Link(left, silence_s=0.05)) as rank, right:
        right.sendall(sent)
        with pytest.raises(LinkSilent):
            rank.receive()


def test_one_that_takes_nothing_any_more_is_noticed_while_sending() -> None:
    left, right = socket.socketpair()
    with closing(Link(left, silence_s=0.05)) as rank, right, pytest.raises(LinkSilent):
        rank.send(batch(bytes(50_000_000)))


# --- rank 0's client ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Iterator[tuple[DispatcherClient, Link, Link]]:
    """A client, and the dispatcher's ends of its two links; the process beside them only waits for its end."""
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    loop, saves = socket.socketpair(), socket.socketpair()
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as process:
        ends = [Link(sock) for sock in (loop[1], saves[1])]
        yield DispatcherClient(Link(loop[0], 20), Link(saves[0], 20), process), ends[0], ends[1]
        for end in ends:
            end.close()
        process.kill()


def test_the_ranks_are_kept_alive_while_the_facts_of_a_checkpoint_take_long(client: tuple[DispatcherClient, Link, Link]) -> None:
    rank, _, dispatcher = client
    signs: list[str] = []
    rank.alive = lambda: signs.append("alive")
    rank.ask_manifest_facts()
    assert dispatcher.receive() == ManifestQuestion()
    for message in (Alive(), Alive(), FACTS):
        dispatcher.send(message)
    assert rank.manifest_facts() == FACTS
    assert signs == ["alive", "alive"]


def test_the_claim_is_awaited_once(client: tuple[DispatcherClient, Link, Link]) -> None:
    rank, dispatcher, _ = client
    with pytest.raises(ProtocolError, match="was not awaited"):
        _ = rank.claim
    dispatcher.send(ClaimWon("u", 3, lost_from=2, losses=["topic x is gone"]))
    assert rank.await_claim() is rank.await_claim() is rank.claim
    assert rank.claim.lost_from == 2


def test_the_end_of_the_dispatcher_is_reported_with_its_exit_code(client: tuple[DispatcherClient, Link, Link]) -> None:
    rank, dispatcher, _ = client
    dispatcher.close()
    with pytest.raises(LinkClosed, match=r"the dispatcher process ended .exit code None.; see logs/dispatcher\.log"):
        rank.next()
