"""A real process group of one, for tests that run a rank inside pytest."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """torch.distributed with gloo and a world of 1. Imported by name into the test modules that need it."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        yield
        return
    torch.set_num_threads(1)
    store = tmp_path_factory.mktemp("gloo") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
