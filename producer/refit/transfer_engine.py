"""vLLM's weight-transfer engine over any transport of ours: the worker's side of a refit.

vLLM's lifecycle is used so that the old weights stay complete until the new ones are: `init` joins the group, `start` does
nothing, `update` receives everything into staging and checks the digest, `finish` loads. A worker never raises while it receives:
it answers with a receipt, and the engine calls `finish` with staged weights only when the receipts of all workers agree. With
several workers, an error raised by one would leave the other workers' answers unread.

The layers are loaded through vLLM's layer-wise reload: on CPUs the weights in use are packed and cannot be written directly.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from producer.refit.staging import Staged, receive
from schemas.weights.plan import make_plan
from schemas.weights.transports.find import for_member
from schemas.weights.transports.protocol import Receiver, Rendezvous

logger = logging.getLogger(__name__)


NAME = "weir"  # of this engine, for vLLM


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """One member's offer.

    backend: `refit.backend`; at: fields of a `Rendezvous`; rank_offset: rank of this engine's first worker.
    """

    backend: str
    at: dict[str, Any]
    world: int
    rank_offset: int
    timeout_s: float


@dataclass
class PlanInfo(WeightTransferUpdateInfo):
    """What the bucket plan is made of. tensors: [name, shape] in the plan's order."""

    tensors: list[Any] = field(default_factory=list)
    dtype: str = "float32"
    bucket_mib: int = 64


class TransferEngine(WeightTransferEngine[JoinInfo, PlanInfo]):
    """Stages in main memory, or on the worker's GPU if the transport needs one; loading copies to where the weights are used."""

    init_info_cls = JoinInfo
    update_info_cls = PlanInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._group: Receiver | None = None
        self._staging_device: torch.device | str = "cpu"
        self._staged: Staged | None = None
        self._failure: str | None = "no transfer was started"

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        self.shutdown()
        self._failure = None
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        try:
            at = Rendezvous(**init_info.at)
            transport = for_member(init_info.backend, at)
            self._staging_device = self.device if transport.needs_gpu else "cpu"
            self._group = transport.join(at, rank, init_info.world, init_info.timeout_s, self._staging_device)
        except Exception as error:  # noqa: BLE001 (whatever it is, every worker must answer before the engine judges)
            self._fail(error)

    def start_weight_update(self) -> None:
        """Nothing: the weights in use stay as they are until `finish_weight_update`."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class also synchronizes an accelerator, which a CPU worker does not have; receiving is complete here.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: PlanInfo) -> None:
        if self._group is None:
            return
        try:
            index = [(name, tuple(shape)) for name, shape in update_info.tensors]
            plan = make_plan(index, update_info.dtype, update_info.bucket_mib)
            self._staged = receive(plan, self._group.broadcast, self._staging_device)
        except Exception as error:  # noqa: BLE001 (as above)
            self._fail(error)
        finally:
            self._leave()

    def finish_weight_update(self) -> None:
        """Load what is staged, layer by layer; with nothing staged the update just ends. An error leaves half a model."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        staged, self._staged = self._staged, None
        if staged is None:
            return
        with torch.inference_mode():
            initialize_layerwise_reload(self.model)
            self.model.load_weights(staged.tensors())
            finalize_layerwise_reload(self.model, self.model_config)
            _repack_tied_layers(self.model)

    def shutdown(self) -> None:
        """Leave the group and drop what is staged."""
        self._leave()
        self._staged = None

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def receipt(self) -> dict[str, Any]:
        """`{"failure": text}`, or `{"digest", "probe"}` of the staged weights."""
        if self._staged is None:
            return {"failure": self._failure or "nothing was received"}
        return {"digest": self._staged.digest, "probe": list(self._staged.probe)}

    def _fail(self, error: Exception) -> None:
        logger.warning("weight transfer failed", exc_info=error)
        self._failure = str(error) or type(error).__name__
        self.shutdown()


def _repack_tied_layers(model: torch.nn.Module) -> None:
    """Renew the packed copy of layers that only share a parameter which another layer loaded, as a tied output matrix does.

    On CPUs a layer computes from a packed copy of its weight, and the reload packs only those that were loaded by name.
    """
    sharing: dict[int, list[torch.nn.Module]] = {}
    for layer in model.modules():
        for parameter in layer.parameters(recurse=False):
            if parameter.numel():
                sharing.setdefault(parameter.data_ptr(), []).append(layer)
    for layers in sharing.values():
        for layer in layers if len(layers) > 1 else ():
            if hasattr(layer, "cpu_linear"):
                layer.quant_method.process_weights_after_loading(layer)


class WorkerExtension:
    """Methods that vLLM mixes into its workers. Every worker therefore imports this module, which registers the engine."""

    weight_transfer_engine: Any

    def weir_receipt(self) -> dict[str, Any]:
        receipt: dict[str, Any] = self.weight_transfer_engine.receipt()
        return receipt

    def weir_drop(self) -> None:
        """Drop what is staged; the `finish_weight_update` that follows then loads nothing."""
        self.weight_transfer_engine.shutdown()


def register() -> None:
    """Make the engine known to vLLM by its name; safe to call again in the same process."""
    if NAME not in WeightTransferEngineFactory._registry:  # noqa: SLF001 (registering twice raises, and there is no other test)
        WeightTransferEngineFactory.register_engine(NAME, "producer.refit.transfer_engine", "TransferEngine")


register()
