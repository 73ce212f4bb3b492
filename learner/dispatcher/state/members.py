"""What the control state says of producers: who is a member with which weights, and who is refused.

Invariant: this is the only place that holds it, and every change makes a new mapping; comparing with the mapping of an earlier
moment shows whether anything has changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from schemas.records.control import Member

MAX_REFUSED = 64  # refused producers that are remembered: the state, which names them, must not grow for ever


class Members(Mapping[str, Member]):
    """Members by name. Changes are rare (joining, a refit, leaving), questions are not: a change copies the mapping."""

    def __init__(self) -> None:
        self.present: Mapping[str, Member] = {}
        self.refused: Mapping[str, list[str]] = {}

    def put(self, name: str, member: Member) -> None:
        if self.present.get(name) != member:
            self.present = {**self.present, name: member}

    def change(self, name: str, **fields: object) -> None:
        self.put(name, self.present[name].model_copy(update=fields))

    def drop(self, name: str) -> None:
        self.present = {other: member for other, member in self.present.items() if other != name}

    def refuse(self, name: str, problems: list[str]) -> None:
        """`problems`: why, for the producer, which reads them in the control state and ends."""
        refused = {**self.refused, name: problems}
        if len(refused) > MAX_REFUSED:
            del refused[next(iter(refused))]
        self.refused = refused

    def __getitem__(self, name: str) -> Member:
        return self.present[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.present)

    def __len__(self) -> int:
        return len(self.present)
