"""The socket between rank 0 and its dispatcher process: one question, one answer, msgpack frames with a length.

Invariants: rank 0 asks and the dispatcher answers each question once, within `ANSWER_S` (an answer may be `wait`); when either
end closes, the other's next call raises `LinkClosed`.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgpack

from schemas.errors import WeirError

ANSWER_S = 2.0  # the dispatcher answers `wait` after this long, so that rank 0 can show the other ranks that it lives
_LENGTH = struct.Struct("<Q")

Message = dict[str, Any]


class LinkClosed(WeirError):
    """The process at the other end has gone."""


class Link:
    """One end of the socket. Used by one thread at a time in each direction."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        sock.setblocking(True)

    def send(self, message: Message) -> None:
        body = msgpack.packb(message)
        try:
            self._socket.sendall(_LENGTH.pack(len(body)))
            self._socket.sendall(body)
        except OSError as error:
            raise LinkClosed(f"the other process has gone ({error})") from error

    def receive(self) -> Message:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        message: Message = msgpack.unpackb(self._exactly(length), raw=False, strict_map_key=False, max_bin_len=2**31 - 1)
        return message

    def ask(self, op: str, **payload: Any) -> Message:
        """Rank 0: one question and its answer."""
        self.send({"op": op, **payload})
        return self.receive()

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                read = self._socket.recv_into(view[at:])
            except OSError as error:
                raise LinkClosed(f"the other process has gone ({error})") from error
            if read == 0:
                raise LinkClosed("the other process has gone")
            at += read
        return data
