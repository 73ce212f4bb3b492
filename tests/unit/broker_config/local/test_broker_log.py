"""Why a broker ended, read from its log."""

from __future__ import annotations

import pytest

from broker_config.local.broker_log import fault

START = "[2026-01-01 10:00:00,000] INFO [KafkaRaftServer nodeId=1] Kafka Server started (kafka.server.KafkaRaftServer)"
FAILED = "[2026-01-01 10:00:01,000] ERROR Error while {} (org.apache.kafka.storage.internals.log.LogDirFailureChannel)"
STACK = "\tat java.base/sun.nio.ch.UnixFileDispatcherImpl.write0(Native Method)"
AFTER = "[2026-01-01 10:00:01,100] ERROR Shutdown broker because all log dirs in /data have failed (kafka.log.LogManager)"

APPENDING = "appending records to r.control-0 in dir /data"
FULL = "java.io.IOException: No space left on device"
FATAL = "[2026-01-01 10:00:01,000] ERROR Encountered fatal fault: Error applying topics delta (org.apache.kafka.server.fault.F)"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([START, FAILED.format(APPENDING), FULL, STACK, AFTER], f"{APPENDING}: No space left on device"),
        ([FAILED.format(APPENDING), STACK, "java.io.IOException: File too large", AFTER, FULL], f"{APPENDING}: File too large"),
        ([FAILED.format(APPENDING), "o.a.KafkaStorageException: Error in dir", f"Caused by: {FULL}"],
         f"{APPENDING}: No space left on device"),
        ([FATAL.replace("fatal", "metadata publishing"), FULL], "Error applying topics delta: No space left on device"),
        ([FATAL, "java.lang.RuntimeException: broken"], "Error applying topics delta: broken"),
        ([START, FAILED.format("rolling the log of r.metrics-0")], "rolling the log of r.metrics-0"),
        ([START, "[2026-01-01 10:00:01,000] WARN [Controller id=1] fenced (org.apache)"], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_first_failure_is_named_with_its_innermost_cause(lines: list[str], cause: str | None) -> None:
    assert fault(lines) == cause
