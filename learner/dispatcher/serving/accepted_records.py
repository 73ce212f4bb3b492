"""The raw bytes of accepted records, kept from the log until their version has been trained.

Invariant: a record is kept under where it lies (topic, partition, offset), the same place that a seal names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from schemas.errors import LostData
from schemas.records.seal import Seal

WAY_OUT = "restore the topic, or resume without its data by --resume --accept-loss"


class AcceptedRecords:
    def __init__(self) -> None:
        self._of_topic: dict[str, dict[tuple[int, int], bytes]] = {}

    def keep(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self._of_topic.setdefault(topic, {})[partition, offset] = value

    def drop(self, topic: str) -> None:
        self._of_topic.pop(topic, None)

    def of_seal(self, topic: str, seal: Seal) -> list[bytes]:
        """The sealed records in slot order.

        Raises:
            LostData: a record that the seal names was not read, or its bytes are others.
        """
        have: Mapping[tuple[int, int], bytes] = self._of_topic.get(topic, {})
        records = []
        for slot, entry in sorted(seal.slots.items()):
            value = have.get((entry.partition, entry.offset))
            where = f"{topic}[{entry.partition}] offset {entry.offset}, slot {slot}"
            if value is None:
                raise LostData(f"the seal of version {seal.version} names {where}, which holds no valid record; {WAY_OUT}")
            if hashlib.sha256(value).hexdigest() != entry.sha256:
                raise LostData(f"the record at {where} is not the sealed one: sha256 differs from {entry.sha256}; {WAY_OUT}")
            records.append(value)
        return records
