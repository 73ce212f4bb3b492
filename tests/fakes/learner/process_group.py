"""A real process group of one, for tests that run a rank inside pytest."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """torch.distributed with gloo and a world of 1. Imported by name into the test modules that need it.

    Megatron's groups belong to the default group of the moment, and an engine of vLLM in the same process takes that down when it
    is closed: so each module leaves none behind.
    """
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    found = dist.is_initialized()
    if not found:
        torch.set_num_threads(1)
        store = tmp_path_factory.mktemp("gloo") / "store"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if not found:
        dist.destroy_process_group()
