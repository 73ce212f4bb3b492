"""The socket between rank 0 and its dispatcher process: one question, one answer.

Invariants: rank 0 asks and the dispatcher answers each question once. `NextQuestion` is answered within `ANSWER_S` (perhaps by
`KeepWaiting`); while another answer takes longer (an outage of the broker), the dispatcher sends a sign of life every `ALIVE_S`,
so rank 0 waits for a dispatcher that lives, and for no other. When either end closes, the other's next call raises `LinkClosed`.

There are two of them: one for training, and one for checkpoints, whose questions are asked while training continues.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from learner.link.messages import Alive, Answer, Message, Question, RunRefused
from schemas.errors import ConfigError, LostData, Problem, ProtocolError, WeirError

ANSWER_S = 2.0  # the dispatcher answers `KeepWaiting` after this long, so that rank 0 can show the other ranks that it lives
ALIVE_S = 2.0

A = TypeVar("A", bound=Answer)


class LinkClosed(WeirError):
    """The process at the other end has gone."""


class LinkSilent(WeirError):
    """The process at the other end is there and sends nothing."""


class Link:
    """One end of the socket. Received by one thread; sent by any."""

    def __init__(self, sock: socket.socket, silence_s: float | None = None) -> None:
        """silence_s: how long `receive` waits for the next bytes, and `send` for room; None: for ever.

        Owns `sock` from here on.
        """
        self._silence_s = silence_s
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        sock.setblocking(True)
        if silence_s is not None:
            # `Connection` reads and writes the bare descriptor, so the kernel keeps the deadline of each read and write.
            fraction, whole = math.modf(silence_s)
            limit = struct.pack("@ll", int(whole), int(fraction * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._socket = sock
        self._connection = Connection(os.dup(sock.fileno()))

    def send(self, message: Message) -> None:
        """
        Raises:
            LinkClosed, LinkSilent
        """
        try:
            with self._sending:
                self._connection.send(message)
        except BlockingIOError as error:
            raise self._silent() from error
        except OSError as error:
            raise LinkClosed(f"the other process has gone ({error})") from error

    def receive(self) -> Message:
        """The next message.

        Raises:
            LinkClosed, LinkSilent
        """
        try:
            with self._receiving:
                message: Message = self._connection.recv()
        except BlockingIOError as error:
            raise self._silent() from error
        except EOFError as error:
            raise LinkClosed("the other process has gone") from error
        except OSError as error:
            raise LinkClosed(f"the other process has gone ({error})") from error
        return message

    def ask(self, question: Question, expected: type[A], alive: Callable[[], None] = lambda: None) -> A:
        """Rank 0: one question and its answer, as by `answer`."""
        self.send(question)
        return self.answer(expected, alive)

    def answer(self, expected: type[A], alive: Callable[[], None] = lambda: None) -> A:
        """Rank 0: the next message that is no sign of life; `alive` is called at each of those.

        Raises:
            LinkClosed, LinkSilent
            LostData, ConfigError: the dispatcher cannot serve the run.
            ProtocolError: the answer is of another kind than `expected`.
        """
        while isinstance(answer := self.receive(), Alive):
            alive()
        match answer:
            case RunRefused(error, lost_data=True):
                raise LostData(error)
            case RunRefused(error):
                raise ConfigError([Problem("dispatcher", None, error, "see above")])
        if not isinstance(answer, expected):
            raise ProtocolError(f"the dispatcher answered {type(answer).__name__}, expected was {expected.__name__}")
        return answer

    def close(self) -> None:
        """Also while other threads send or receive: they are woken first, since a descriptor that is closed under them could be
        another file's by the time that they use it."""
        with contextlib.suppress(OSError):  # the other end has gone already, or this one was closed before
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._sending, self._receiving:
            self._connection.close()
        self._socket.close()

    def _silent(self) -> LinkSilent:
        return LinkSilent(f"the other process sent nothing for {self._silence_s:g} s; does it stand still?")


class Answers:
    """The dispatcher's end of a link. While an answer is owed, rank 0 is sent a sign of life every `ALIVE_S`, from a thread.

    `owing`: the first word is the dispatcher's.
    """

    def __init__(self, link: Link, *, owing: bool = False) -> None:
        self._link = link
        self._owing = threading.Event()
        self._closed = threading.Event()
        if owing:
            self._owing.set()
        threading.Thread(target=self._live, name="signs-of-life", daemon=True).start()

    def question(self) -> Message:
        """The next one.

        Raises:
            LinkClosed: rank 0 has gone.
        """
        try:
            message = self._link.receive()
        except LinkClosed:
            self._closed.set()
            raise
        self._owing.set()  # before it is handled: who handles it may be waiting for the broker
        return message

    def answer(self, answer: Answer) -> None:
        self._owing.clear()
        self._link.send(answer)

    def _live(self) -> None:
        try:
            while not self._closed.wait(ALIVE_S):
                if self._owing.is_set():
                    self._link.send(Alive())
        except LinkClosed:
            return  # the thread that waits for a question reports it
