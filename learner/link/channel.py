"""The socket between rank 0 and its dispatcher process: one question, one answer, msgpack frames with a length.

Invariants: rank 0 asks and the dispatcher answers each question once. `next` is answered within `ANSWER_S` (perhaps by `wait`);
while another answer takes longer (an outage of the broker), the dispatcher sends a sign of life every `ALIVE_S`, so rank 0 waits
for a dispatcher that lives, and for no other. When either end closes, the other's next call raises `LinkClosed`.

There are two of them: one for training, and one for checkpoints, whose questions are asked while training goes on.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgpack

from schemas.errors import WeirError

ANSWER_S = 2.0  # the dispatcher answers `wait` after this long, so that rank 0 can show the other ranks that it lives
ALIVE_S = 2.0
ALIVE: Final = {"alive": True}
_LENGTH = struct.Struct("<Q")

Message = dict[str, Any]


class LinkClosed(WeirError):
    """The process at the other end has gone."""


class LinkSilent(WeirError):
    """The process at the other end is there and says nothing."""


class Link:
    """One end of the socket. Received by one thread; sent by any."""

    def __init__(self, sock: socket.socket, silence_s: float | None = None) -> None:
        """silence_s: how long `receive` waits for the next bytes; None: for ever."""
        self._socket = sock
        self._silence_s = silence_s
        self._sending = threading.Lock()
        sock.settimeout(silence_s)

    def send(self, message: Message) -> None:
        body = msgpack.packb(message)
        try:
            with self._sending:
                self._socket.sendall(_LENGTH.pack(len(body)))
                self._socket.sendall(body)
        except TimeoutError as error:
            raise self._silent() from error
        except OSError as error:
            raise LinkClosed(f"the other process has gone ({error})") from error

    def receive(self) -> Message:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        message: Message = msgpack.unpackb(self._exactly(length), raw=False, strict_map_key=False, max_bin_len=2**31 - 1)
        return message

    def ask(self, op: str, alive: Callable[[], None] = lambda: None, **payload: Any) -> Message:
        """Rank 0: one question and its answer; `alive` is called at each sign of life before it.

        Raises:
            LinkClosed, LinkSilent
        """
        self.send({"op": op, **payload})
        return self.answer(alive)

    def answer(self, alive: Callable[[], None]) -> Message:
        """Rank 0: the next message that is no sign of life."""
        while (answer := self.receive()) == ALIVE:
            alive()
        return answer

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                read = self._socket.recv_into(view[at:])
            except TimeoutError as error:
                raise self._silent() from error
            except OSError as error:
                raise LinkClosed(f"the other process has gone ({error})") from error
            if read == 0:
                raise LinkClosed("the other process has gone")
            at += read
        return data

    def _silent(self) -> LinkSilent:
        return LinkSilent(f"the other process said nothing for {self._silence_s:g} s; does it stand still?")


class Answers:
    """The dispatcher's end of a link. While an answer is owed, rank 0 is sent a sign of life every `ALIVE_S`, from a thread.

    `owing`: the first word is the dispatcher's.
    """

    def __init__(self, link: Link, *, owing: bool = False) -> None:
        self._link = link
        self._owing = threading.Event()
        if owing:
            self._owing.set()
        threading.Thread(target=self._live, name="signs-of-life", daemon=True).start()

    def question(self) -> Message:
        """The next one.

        Raises:
            LinkClosed: rank 0 has gone.
        """
        message = self._link.receive()
        self._owing.set()  # before it is handled: who handles it may be waiting for the broker
        return message

    def answer(self, message: Message) -> None:
        self._owing.clear()
        self._link.send(message)

    def _live(self) -> None:
        try:
            while True:
                time.sleep(ALIVE_S)
                if self._owing.is_set():
                    self._link.send(ALIVE)
        except LinkClosed:
            return  # whoever waits for a question is told
