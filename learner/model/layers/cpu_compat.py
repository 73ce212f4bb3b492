"""Run megatron-core 0.16 without CUDA.

megatron-core asks for CUDA in a few dozen places that have nothing to do with a GPU: devices of scalar tensors, random states,
synchronisation. `enable` gives the modules below `megatron.core` a view of torch in which those names act on the CPU. Torch
itself stays as it is (other libraries compare with its functions), except for `Tensor.cuda`, which becomes the identity.

Where CUDA is available nothing is changed, except for the state of torch's own Adam (last section), which is independent of it.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")

_LAZY = ("torch", "filesystem_async", "async_utils", "state_dict_saver", "fully_parallel", "common")
"""Modules of `dist_checkpointing.strategies` that megatron imports on first use, which would be after the patch."""


# A view, and not new functions in torch itself: transformers looks torch's constructors up while it builds a model, and with
# replaced ones it computes rotary frequencies that are garbage, without an error.
class _View(types.ModuleType):
    """A module with some names replaced."""

    def __init__(self, base: types.ModuleType, replaced: dict[str, Any]) -> None:
        super().__init__(base.__name__)
        self.__dict__["_base"] = base
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)


class _Stream:
    """Stands for a stream or an event: everything is done already."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _nothing(*_: Any, **__: Any) -> None: ...


def _on_cpu(name: str) -> Callable[..., Any]:
    original = getattr(torch, name)

    def factory(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return original(*args, **kwargs)

    return factory


def _torch_view() -> _View:
    cuda = _View(
        torch.cuda,
        {
            "current_device": lambda: CPU,
            # `is_available` is not here: it must stay false, megatron chooses its device by it.
            "device_count": lambda: 1,
            "synchronize": _nothing,
            "empty_cache": _nothing,
            "set_device": _nothing,
            "current_stream": lambda *_: _Stream(),
            "default_stream": lambda *_: _Stream(),
            "stream": lambda _: contextlib.nullcontext(),
            "get_rng_state": lambda *_, **__: torch.get_rng_state(),
            "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
            "manual_seed": lambda seed: torch.default_generator.manual_seed(seed),
            "Stream": _Stream,
            "Event": _Stream,
        },
    )
    factories = ["tensor", "zeros", "ones", "empty", "full", "arange", "empty_like", "zeros_like", "ones_like"]
    return _View(torch, {"cuda": cuda, **{name: _on_cpu(name) for name in factories}})


def enable() -> None:
    """Patch the megatron modules imported so far. May be called again after further imports."""
    if torch.cuda.is_available():
        return
    # All imports first: a module that comes later would keep the name `torch` for torch.
    for name in _LAZY:
        importlib.import_module(f"megatron.core.dist_checkpointing.strategies.{name}")
    importlib.import_module("megatron.core.dist_checkpointing.exchange_utils")
    view = _torch_view()
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and getattr(module, "torch", None) is torch:
            module.torch = view  # type: ignore[attr-defined]
    # A method of tensors has no module to look through; megatron calls it for a tied embedding over pipeline stages.
    torch.Tensor.cuda = lambda self, *_, **__: self
    _patch_random_states()
    _patch_gradient_clipping()


def _patch_random_states() -> None:
    from megatron.core.tensor_parallel import random

    def get(device: Any = "cuda", clone: bool = False, graph_safe: bool = False) -> Tensor:
        return torch.get_rng_state()

    def put(state: Tensor, device: Any = -1, graph_safe: bool = False) -> None:
        torch.set_rng_state(state)

    random._get_cuda_rng_state, random._set_cuda_rng_state = get, put  # noqa: SLF001


def _patch_gradient_clipping() -> None:
    """The original asserts that gradients are of type torch.cuda.FloatTensor."""
    from megatron.core.optimizer import clip_grads, optimizer

    def clip(parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: float, use_decoupled_grad: bool = False) -> None:
        name = "decoupled_grad" if use_decoupled_grad else "grad"
        owners = [parameters] if isinstance(parameters, Tensor) else parameters
        grads = [grad for owner in owners if (grad := getattr(owner, name, None)) is not None]
        factor = max_norm / (total_norm + 1.0e-6)  # megatron's formula, so that both kinds of device clip alike
        if factor < 1.0 and grads:
            torch._foreach_mul_(grads, factor)

    clip_grads.clip_grad_by_total_norm_fp32 = optimizer.clip_grad_by_total_norm_fp32 = clip


@contextlib.contextmanager
def cuda_type_names(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """While an optimizer is built: parameters report `torch.cuda.FloatTensor` and the like, which megatron compares with."""
    if torch.cuda.is_available():
        yield
        return
    parameters = [parameter for module in modules for parameter in module.parameters()]

    def reporter(parameter: Tensor) -> Callable[..., Any]:
        def name(*args: Any, **kwargs: Any) -> Any:
            if args or kwargs:
                return Tensor.type(parameter, *args, **kwargs)
            return Tensor.type(parameter).replace("torch.", "torch.cuda.")

        return name

    for parameter in parameters:
        parameter.type = reporter(parameter)
    try:
        yield
    finally:
        for parameter in parameters:
            del parameter.type


def write_in_process() -> None:
    """A synchronous save writes its files in this process. megatron would spawn a manager for the results (seconds of imports)
    and fork this process, with all its threads and memory, for each file."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    writer = filesystem_async.FileSystemWriterAsync

    def write(transforms: list[Any], use_msc: bool, rank: int, buckets: list[Any], results: Any) -> None:
        """As `write_preloaded_data_multiproc`; puts {bucket: written} or the first error into `results`."""
        done: queue.Queue[tuple[int, Any]] = queue.Queue()
        pending: queue.Queue[int] = queue.Queue()
        for number, bucket in enumerate(buckets):
            pending.put(number)
            writer.write_preloaded_data(
                transforms, local_proc_idx=number, write_bucket=bucket, results_queue=done, count_queue=pending, use_fsync=True
            )
        written = dict(done.get_nowait() for _ in buckets)
        errors = [outcome for outcome in written.values() if isinstance(outcome, Exception)]
        results.put(_of_the_system(errors[0]) if errors else written)

    writer.write_preloaded_data_multiproc = staticmethod(write)
    # megatron makes this queue by spawning a process on first use, unless it is there.
    filesystem_async._results_queue = queue.Queue()  # noqa: SLF001


def _of_the_system(error: BaseException) -> BaseException:
    """The operating system's error: when a write fails in the middle of a tensor, torch raises its own error instead."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError):
            return link
        link = link.__cause__ or link.__context__
    return error


# torch's own Adam, which megatron uses without Transformer Engine and Apex, is not what its checkpoint code expects.


def fix_distributed_optimizer() -> None:
    """Loading sets `step` too, which a checkpoint of the distributed optimizer does not have, and lacks `no_grad`."""
    from megatron.core.optimizer import USING_PYTORCH_OPTIMIZER
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    if not USING_PYTORCH_OPTIMIZER:
        return

    def set_state(self: Any, model_param: Tensor, tensors: dict[str, Tensor]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        main = self.optimizer.param_groups[group]["params"][order]
        with torch.no_grad():
            for name, value in {"param": main, **self.optimizer.state[main]}.items():
                if name in tensors:
                    value.copy_(tensors[name])

    DistributedOptimizer._set_main_param_and_optimizer_states = set_state  # noqa: SLF001


def complete_adam_state(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter its own moments and step.

    Adam makes them at its first step, but a checkpoint of version 0 needs them; and a loaded state has no step at version 0, or
    one tensor that all parameters share, which would then count up once for each of them.
    """
    # With a shared step tensor the bias corrections of the first steps after a resume are wrong, by 2.5e-4 in the weights of a
    # small model: enough to fork a run, too little to be seen in a curve.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if "exp_avg" not in state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter.data), torch.zeros_like(parameter.data)
            step = state.get("step")
            state["step"] = torch.zeros(()) if step is None else torch.as_tensor(step, dtype=torch.float32).clone()
