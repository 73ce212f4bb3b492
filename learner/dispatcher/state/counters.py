"""Counts since the dispatcher started, for metrics and for `weir status`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class Counters:
    failures: dict[str, int] = field(default_factory=dict)
    """Requests that ended without a group, by `FailureKind`."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Records in quarantine, by reason."""
    reissued: int = 0
    hedged: int = 0
    filtered: int = 0
    duplicates: int = 0
    late: int = 0
    ignored_status: int = 0

    def bump(self, table: Literal["failures", "refusals"], name: str) -> None:
        counts: dict[str, int] = getattr(self, table)
        counts[name] = counts.get(name, 0) + 1

    def as_metrics(self) -> dict[str, float]:
        """All counts by the names that the metrics topic and TensorBoard have."""
        flat = {f"dispatch/failures_{kind}": count for kind, count in self.failures.items()}
        flat |= {f"dispatch/refused_{reason}": count for reason, count in self.refusals.items()}
        flat |= {f"dispatch/{name}": count for name, count in self.totals().items()}
        return {name: float(count) for name, count in flat.items()}

    def totals(self) -> dict[str, int]:
        """Counts that have no kinds."""
        return {
            "reissued": self.reissued,
            "hedged": self.hedged,
            "filtered": self.filtered,
            "duplicates": self.duplicates,
            "late": self.late,
            "ignored_status": self.ignored_status,
        }
