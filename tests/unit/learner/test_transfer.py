"""The sender: what reaches a group, and that the gather is drained whatever happens to the groups."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import pytest
import torch

from learner.transfer.sending import broadcast
from producer.refit.staging import Staged, receive
from schemas.errors import TransferError
from schemas.weights.last_word import unpack_last_word
from schemas.weights.plan import make_plan
from schemas.weights.transports.gloo import TRANSPORT
from schemas.weights.transports.protocol import Rendezvous
from tests.fakes.learner.transfers import send_all

INDEX = [("a", (300, 1000)), ("b", (3,)), ("c", (64, 32)), ("d", (300, 1000))]
PLAN = make_plan(INDEX, "float32", 1)
Named = tuple[str, torch.Tensor]


def tensors(seed: int = 0) -> list[Named]:
    generator = torch.Generator().manual_seed(seed)
    return [(name, torch.randn(shape, generator=generator)) for name, shape in INDEX]


def digest_of(named: Iterable[Named]) -> str:
    return broadcast(PLAN, (), named, ()).digest


class RecordingSender:
    """A group that keeps what it is given; the broadcast number `fails_at` does not start, or does not finish."""

    def __init__(self, fails_at: int | None = None, when: str = "start") -> None:
        self.sent: list[torch.Tensor] = []
        self.calls = 0
        self.fails_at = fails_at
        self.when = when

    def open(self, world: int) -> Rendezvous:
        raise AssertionError("broadcast is for groups that are connected")

    def connect(self) -> None:
        raise AssertionError("broadcast is for groups that are connected")

    def start(self, tensor: torch.Tensor) -> int:
        self.calls += 1
        if self.calls - 1 == self.fails_at and self.when == "start":
            raise TransferError("gone")
        self.sent.append(tensor.clone())
        return self.calls - 1

    def finish(self, work: int) -> None:
        if work == self.fails_at and self.when == "finish":
            raise TransferError("reset")

    def close(self) -> None:
        pass


class Drained:
    """An iterator that says whether it was followed to its end."""

    def __init__(self, items: Sequence[Named]) -> None:
        self.items = items
        self.ended = False

    def __iter__(self) -> Iterator[Named]:
        yield from self.items
        self.ended = True


@pytest.mark.parametrize("when", ["start", "finish"])
def test_a_failed_group_is_left_the_others_go_on_and_the_gather_ends(when: str) -> None:
    good, bad = RecordingSender(), RecordingSender(fails_at=1, when=when)
    gather = Drained(tensors())
    sent = broadcast(PLAN, [bad, good], gather, [-1.0])
    assert gather.ended
    assert list(sent.failed) == [0]
    assert bad.calls == 2
    assert good.calls == len(PLAN.buckets) + 1
    assert sent.digest == digest_of(tensors())
    last = unpack_last_word(good.sent[-1])
    assert (last.digest, last.probe) == (sent.digest, (-1.0,))


def test_digest_does_not_depend_on_the_order_of_the_gather_but_on_every_number() -> None:
    reference = digest_of(tensors())
    assert digest_of(reversed(tensors())) == reference
    changed = tensors()
    changed[1][1][2] += 1
    assert digest_of(changed) != reference


@pytest.mark.parametrize(
    "items",
    [tensors()[:-1], [*tensors(), tensors()[0]], [("a", torch.zeros(2)), *tensors()[1:]], [("x", torch.zeros(2)), *tensors()]],
    ids=["missing", "twice", "shape", "unknown"],
)
def test_other_tensors_than_planned_are_an_error_after_the_gather_ended(items: Sequence[Named]) -> None:
    sender, gather = RecordingSender(), Drained(items)
    with pytest.raises(ValueError, match="not those of the plan"):
        broadcast(PLAN, [sender], gather, [])
    assert gather.ended
    assert sender.calls <= len(PLAN.buckets)


def test_two_members_receive_what_was_sent_over_gloo() -> None:
    sender = TRANSPORT.sender("127.0.0.1", 20)
    at = sender.open(3)
    received: dict[int, Staged] = {}

    def member(rank: int) -> None:
        group = TRANSPORT.join(at, rank, 3, 20, "cpu")
        received[rank] = receive(PLAN, group.broadcast)
        group.close()

    threads = [threading.Thread(target=member, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    sender.connect()
    digest = send_all(PLAN, sender, iter(tensors()), [-2.5])
    sender.close()
    for thread in threads:
        thread.join(20)
    for staged in received.values():
        assert (staged.digest, staged.probe) == (digest, (-2.5,))
        assert all(a[0] == b[0] and a[1].equal(b[1]) for a, b in zip(staged.tensors(), tensors(), strict=True))
    assert sorted(received) == [1, 2]


def test_a_member_that_hangs_fails_the_send_in_its_time_and_the_gather_ends() -> None:
    sender = TRANSPORT.sender("127.0.0.1", 2)
    at = sender.open(2)
    over = threading.Event()

    def hang() -> None:
        group = TRANSPORT.join(at, 1, 2, 20, "cpu")
        over.wait(20)
        group.close()

    thread = threading.Thread(target=hang)
    thread.start()
    sender.connect()
    big = make_plan([("x", (4 << 20,))], "float32", 64)
    gather = Drained([("x", torch.zeros(4 << 20))])
    started = time.monotonic()
    sent = broadcast(big, [sender], gather, [])
    over.set()
    thread.join(20)
    sender.close()
    assert gather.ended
    assert list(sent.failed) == [0]
    assert time.monotonic() - started < 10


def test_members_that_do_not_come_fail_the_connect_in_its_time() -> None:
    sender = TRANSPORT.sender("127.0.0.1", 1)
    sender.open(2)
    started = time.monotonic()
    with pytest.raises(TransferError, match="2 members"):
        sender.connect()
    assert time.monotonic() - started < 10
    sender.close()


def test_an_address_of_another_machine_is_refused_with_the_key() -> None:
    with pytest.raises(TransferError, match=r"refit\.host"):
        TRANSPORT.sender("192.0.2.1", 1).open(2)
