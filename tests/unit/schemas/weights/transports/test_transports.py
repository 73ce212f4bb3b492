"""What every transport does, in one process: rank 0 and its members on threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import get_args

import pytest
import torch

from schemas.config.dispatch import RefitConfig
from schemas.errors import TransferError
from schemas.weights.transports.find import find_transport, for_member, for_sender
from schemas.weights.transports.protocol import Receiver, Rendezvous, Transport

BACKENDS: list[str] = [name for name in get_args(RefitConfig.model_fields["backend"].annotation) if name != "auto"]
TIMEOUT_S = 20.0


@pytest.fixture(params=BACKENDS)
def transport(request: pytest.FixtureRequest) -> Transport:
    found = find_transport(request.param)
    if found.needs_gpu and not torch.cuda.is_available():
        pytest.skip(f"{request.param} needs a GPU")
    return found


def meanwhile(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def word(value: int, count: int = 5) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.int64)


def test_every_value_of_refit_backend_names_a_file() -> None:
    for name in BACKENDS:
        assert find_transport(name).needs_gpu in (True, False)


def test_auto_is_decided_by_the_learners_machine() -> None:
    assert for_sender("auto", gpu=False) is for_member("auto", Rendezvous("h", 1, "p")) is find_transport("gloo")
    assert for_sender("auto", gpu=True) is for_member("auto", Rendezvous(nccl_id="x")) is find_transport("nccl")
    assert for_sender("gloo", gpu=True) is for_member("gloo", Rendezvous(nccl_id="x")) is find_transport("gloo")


def test_all_members_get_every_tensor_in_order(transport: Transport) -> None:
    sender = transport.sender("127.0.0.1", TIMEOUT_S)
    at = sender.open(3)
    got: dict[int, list[torch.Tensor]] = {1: [], 2: []}

    def member(rank: int) -> None:
        group = transport.join(at, rank, 3, TIMEOUT_S, "cpu")
        for _ in range(3):
            tensor = word(-1)
            group.broadcast(tensor)
            got[rank].append(tensor)
        group.close()

    threads = [meanwhile(lambda rank=rank: member(rank)) for rank in (1, 2)]  # type: ignore[misc]
    sender.connect()
    for value in range(3):
        tensor = word(value)
        sender.finish(sender.start(tensor))
        tensor.fill_(99)  # it may be overwritten now
    for thread in threads:
        thread.join(TIMEOUT_S)
    sender.close()
    for tensors in got.values():
        assert [tensor.tolist() for tensor in tensors] == [word(value).tolist() for value in range(3)]


def test_members_that_do_not_come_are_an_error_in_its_time(transport: Transport) -> None:
    sender = transport.sender("127.0.0.1", 0.5)
    sender.open(2)
    began = time.monotonic()
    with pytest.raises(TransferError):
        sender.connect()
    assert time.monotonic() - began < TIMEOUT_S / 2
    sender.close()
    sender.close()


def test_nobody_stands_behind_a_rendezvous_of_a_round_that_is_over(transport: Transport) -> None:
    sender = transport.sender("127.0.0.1", TIMEOUT_S)
    at = sender.open(2)
    sender.close()
    began = time.monotonic()
    with pytest.raises(TransferError):
        transport.join(at, 1, 2, 1.0, "cpu")
    assert time.monotonic() - began < TIMEOUT_S / 2


def test_a_sender_that_leaves_in_the_middle_is_an_error_at_its_members(transport: Transport) -> None:
    sender = transport.sender("127.0.0.1", TIMEOUT_S)
    at = sender.open(2)
    joined: list[Receiver] = []
    thread = meanwhile(lambda: joined.append(transport.join(at, 1, 2, TIMEOUT_S, "cpu")))
    sender.connect()
    thread.join(TIMEOUT_S)
    sender.close()
    del sender
    began = time.monotonic()
    with pytest.raises(TransferError):
        joined[0].broadcast(word(0))
    assert time.monotonic() - began < TIMEOUT_S / 2
    joined[0].close()
