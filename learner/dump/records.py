"""Records as a dump stores them: one file a topic.

A stream of msgpack objects: first {schema, topic}, then one array a record: partition, offset, timestamp_ms, key, value, headers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgpack

from broker_config.clients.stored import StoredRecord
from schemas.errors import WeirError

RECORDS: Final = "weir.records/1"


def write_records(path: Path, topic: str, records: Iterable[StoredRecord]) -> int:
    """Write a topic's file; returns the number of records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("wb") as file:
        file.write(msgpack.packb({"schema": RECORDS, "topic": topic}))
        for r in records:
            file.write(msgpack.packb([r.partition, r.offset, r.timestamp_ms, r.key, r.value, [list(h) for h in r.headers]]))
            count += 1
    return count


def read_records(path: Path) -> Iterator[StoredRecord]:
    """The records of a topic's file, in the order in which they were read from the broker.

    Raises:
        WeirError: the file does not have this form.
    """
    with path.open("rb") as file:
        unpacker = msgpack.Unpacker(file, raw=False, max_buffer_size=0)
        try:
            head = next(unpacker)
            if head["schema"] != RECORDS:
                raise WeirError(f"{path}: schema {head['schema']!r}, this program reads {RECORDS}")
            topic = str(head["topic"])
            for partition, offset, timestamp_ms, key, value, headers in unpacker:
                yield StoredRecord(topic, partition, offset, timestamp_ms, key, value, tuple((n, v) for n, v in headers))
        except (ValueError, TypeError, KeyError, StopIteration, msgpack.UnpackException) as error:
            raise WeirError(f"{path} holds no records ({type(error).__name__}: {error})") from error


def damaged_record(path: Path) -> str | None:
    """Which record of a topic's file is damaged, or None if that is not known."""
    at = "the first record"
    try:
        for record in read_records(path):
            at = f"what follows {record.where}"
            digest = record.header("sha256")
            if digest is not None and digest.decode("ascii", "replace") != hashlib.sha256(record.value or b"").hexdigest():
                key = (record.key or b"-").decode("utf-8", "replace")
                return f"the record {record.where} ({key}) does not hash to its header sha256"
    except WeirError:
        return f"{at} is no record"
    return None
