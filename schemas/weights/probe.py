"""The probe: a fixed sequence that engine and learner score after each load, to compare what they compute."""

from __future__ import annotations

PROBE_TOKENS = 33
_MASK = (1 << 64) - 1


def probe_tokens(vocab_size: int, max_total_length: int) -> list[int]:
    """The fixed pseudo-random token ids that engine and learner score after each load.

    At most 33, and one fewer than the model's longest sequence, since the engine must be able to sample one more. The ids
    are spread over the vocabulary; they may name tokens that no text contains, which both ends score alike.
    """
    count = min(PROBE_TOKENS, max_total_length - 1)
    state, ids = 0x2545F4914F6CDD1D, []
    for _ in range(max(count, 0)):
        state = (state * 6364136223846793005 + 1442695040888963407) & _MASK
        ids.append((state >> 33) % vocab_size)
    return ids
