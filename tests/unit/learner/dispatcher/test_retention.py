"""What is deleted when old checkpoints go."""

from __future__ import annotations

from learner.dispatcher.serving.retention import cuts, retired

TOPICS = [
    "r.control",
    "r.metrics",
    "r.trajectories.v00000003",
    "r.trajectories.v00000004",
    "r.validation.v00000000",
    "r2.trajectories.v00000001",
]


def test_version_topics_below_the_oldest_checkpoint_go_and_nothing_else() -> None:
    assert retired(TOPICS, "r", 4) == ["r.trajectories.v00000003", "r.validation.v00000000"]
    assert retired(TOPICS, "r", 0) == []


def test_the_last_state_is_never_cut_off() -> None:
    """A checkpoint made at the end of the log asks for everything before it to go, the state that holds included."""
    assert cuts("r", {"control": 90, "status": 40}, {0: 7, 1: 0}, last_state=60) == {
        ("r.control", 0): 60,
        ("r.status", 0): 40,
        ("r.requests", 0): 7,
    }
    assert cuts("r", {"control": 9, "status": 0}, {}, last_state=60) == {("r.control", 0): 9}
