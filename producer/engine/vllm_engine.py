"""The real engine: vLLM in this process, stepped by one thread.

One thread owns vLLM's `LLMEngine` (`EngineThread`, `_VllmStepper`); `VllmEngine` is its asyncio side. Between two steps nothing
runs on the device: to pause is not to step, and a refit sees a model at rest. The version label that vLLM writes into every
completion's spans changes after a successful load and before the next step, so each token carries the version of the weights that
sampled it. Every request is salted with the load under which it is first computed: no prefix cache outlives a load, not even one
of the same version.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from producer.engine.protocol import Completion, Ending, EngineDead, Loaded, Sampling, TransferOffer
from producer.engine.thread import EngineThread
from producer.engine.vllm_arguments import cpu_threads, end_token_ids, engine_arguments, set_environment
from schemas.config.dispatch import RefitConfig
from schemas.config.grpo import GenerationConfig
from schemas.config.model import ModelConfig
from schemas.config.producer import ProducerConfig
from schemas.errors import TransferError
from schemas.failpoints import reach
from schemas.records.group import Span
from schemas.weights.plan import WeightPlan, make_plan, model_config_value, tensor_index
from schemas.weights.probe import probe_tokens
from schemas.weights.transports.find import for_member

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 900.0
CLOSE_TIMEOUT_S = 15.0
PROBE_LIMITS = {"float32": 1e-3, "bfloat16": 0.5}
_ENDINGS = {"stop": Ending.STOP, "length": Ending.LENGTH}
_PROBE_STEPS = 64


class VllmEngine:
    """`Engine` over vLLM. The constructor blocks until the engine is ready (seconds: vLLM is imported)."""

    def __init__(self, model: ModelConfig, generation: GenerationConfig, producer: ProducerConfig, refit: RefitConfig) -> None:
        """Raises: ConfigError: no usable checkpoint folder, or a fixed argument in `producer.vllm`; what vLLM raises at start."""
        self._stepper = _VllmStepper(model, generation, producer, refit)
        self._thread = EngineThread(self._stepper)
        self._thread.start(START_TIMEOUT_S)

    @property
    def world_size(self) -> int:
        return self._stepper.world_size

    @property
    def version(self) -> int:
        return self._stepper.version

    @property
    def plan(self) -> WeightPlan:
        """The bucket plan of the weights to receive; its digest goes into reports."""
        return self._stepper.plan

    @property
    def vocab_size(self) -> int:
        return self._stepper.vocab_size

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens."""
        return self._stepper.max_model_len

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, priority: int = 0) -> Completion:
        """priority: as in vLLM, the lowest goes first."""
        done: Future[Completion] = Future()
        prompt = list(prompt_ids)
        accepted = self._thread.call(lambda: self._stepper.add(request_id, prompt, sampling, priority, done))
        try:
            await asyncio.wrap_future(accepted)
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            self._thread.call(lambda: self._stepper.abort(request_id, done))
            raise

    def progress(self) -> dict[str, int]:
        return self._stepper.progress()

    async def pause(self, *, drop_caches: bool) -> None:
        await asyncio.wrap_future(self._thread.call(lambda: self._stepper.pause(drop_caches)))

    async def resume(self) -> None:
        await asyncio.wrap_future(self._thread.call(self._stepper.resume))

    async def receive(self, offer: TransferOffer) -> Loaded:
        """Blocks the engine's thread (not the loop) for at most the offer's timeout and the load, also when cancelled."""
        return await asyncio.wrap_future(self._thread.call(lambda: self._stepper.receive(offer)))

    async def close(self) -> None:
        """Takes at most `CLOSE_TIMEOUT_S`; running requests fail with EngineDead."""
        if not await asyncio.to_thread(self._thread.stop, CLOSE_TIMEOUT_S):
            logger.warning("the engine did not stop within %s s; it ends with this process", CLOSE_TIMEOUT_S)


def _prepare_cpu(threads: int | None) -> None:
    """Turn torch.compile off: without a GPU it compiles one helper of the log-probabilities, many seconds of C++ for nothing."""
    import torch

    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    # torch may have been imported already, and has read its environment then.
    if os.environ["TORCH_COMPILE_DISABLE"] == "1":
        import torch._dynamo

        torch._dynamo.config.disable = True  # noqa: SLF001 (torch.compiler has no public switch)
    if threads is not None:
        torch.set_num_threads(threads)


class _Running:
    """A request in the engine: vLLM's own id for it, and the future that its caller awaits."""

    __slots__ = ("done", "internal_id")

    def __init__(self, internal_id: str, done: Future[Completion]) -> None:
        self.internal_id = internal_id
        self.done = done


class _VllmStepper:
    """`Stepper` over vLLM's `LLMEngine`: all that happens in the engine's thread. Others may read `progress`, version, sizes."""

    def __init__(self, model: ModelConfig, generation: GenerationConfig, producer: ProducerConfig, refit: RefitConfig) -> None:
        self._model = model
        self._generation = generation
        self._producer = producer
        self._refit = refit
        self.plan = make_plan(tensor_index(model.path), model.dtype, refit.bucket_mib)
        self.vocab_size = int(model_config_value(model.path, "vocab_size"))
        self.max_model_len = model.max_total_sequence_length
        self.version = -1
        self.world_size = 1
        self._end_tokens = end_token_ids(model.path)
        self._probe = probe_tokens(self.vocab_size, self.max_model_len)
        self._probe_limit = refit.probe_limit or PROBE_LIMITS[model.dtype]
        self._loads = 0
        self._paused = False
        self._llm: Any = None
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._generated = 0
        """Tokens of requests that have left the engine; guarded, like `_running`, by the lock."""

    def open(self) -> None:
        set_environment(os.environ, self._producer)
        import torch

        on_gpu = torch.cuda.is_available()
        if not on_gpu:
            _prepare_cpu(cpu_threads(self._producer))
        arguments = engine_arguments(self._model, self._generation, self._producer, on_gpu=on_gpu)
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from producer.refit.transfer_engine import NAME, register

        register()
        transfer = WeightTransferConfig(backend=NAME)
        self._llm = LLMEngine.from_engine_args(EngineArgs(**arguments, weight_transfer_config=transfer))
        # At each load vLLM warns of layers without weights of their own (rotary embedding, tied head), which is as it should be.
        # Set only here: vLLM configures its loggers anew for every engine.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        self.world_size = self._llm.vllm_config.parallel_config.world_size
        self._llm.set_weight_version(str(self.version))

    def has_steps(self) -> bool:
        return not self._paused and bool(self._llm.has_unfinished_requests())

    def step(self) -> None:
        for output in self._llm.step():
            if output.finished:
                self._finish(output)

    def _finish(self, output: Any) -> None:
        request_id: str = output.request_id
        sampled = output.outputs[0]
        with self._lock:
            running = self._running.pop(request_id)
            self._generated += len(sampled.token_ids)
        if not running.done.set_running_or_notify_cancel():
            return
        ending = _ENDINGS.get(sampled.finish_reason)
        if ending is None:
            running.done.set_exception(RuntimeError(f"vLLM ended {request_id} with {sampled.finish_reason!r}"))
            return
        spans = tuple(Span(int(span.version), span.start, span.end) for span in sampled.weight_versions)
        running.done.set_result(Completion(list(sampled.token_ids), list(sampled.logprobs.logprobs), spans, ending))

    def add(self, request_id: str, prompt: list[int], sampling: Sampling, priority: int, done: Future[Completion]) -> None:
        """Raises: ValueError: the request cannot be served as it is."""
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        if request_id in self._running:
            raise ValueError(f"request {request_id} is running already")
        if not prompt or len(prompt) >= self.max_model_len:
            raise ValueError(f"a prompt of {len(prompt)} tokens does not fit; 1 to {self.max_model_len - 1} do")
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            raise ValueError(f"token ids {min(prompt)} to {max(prompt)} are not all in the vocabulary of {self.vocab_size}")
        if sampling.stop and not self._generation.stop:
            raise ValueError("stop strings need a tokenizer in the engine: set generation.stop in the configuration")
        params = SamplingParams(
            n=1,
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or 0,
            stop=list(sampling.stop) or None,
            stop_token_ids=sorted({*sampling.stop_token_ids, *self._end_tokens}),
            logprobs=0,
            flat_logprobs=True,
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        salted = tokens_input(prompt, cache_salt=self._salt)
        internal_id = self._llm.add_request(request_id, salted, params, priority=priority)
        with self._lock:
            self._running[request_id] = _Running(internal_id, done)

    @property
    def _salt(self) -> str:
        """Not the version: it may be loaded again with other weights, after a resumed learner has trained it anew."""
        return f"load-{self._loads}"

    def _salt_again(self) -> None:
        """Move requests without a cache, never computed or made to give it back, to this load."""
        for request in self._scheduler.waiting:
            request.cache_salt = self._salt
            request.block_hashes.clear()
            request.update_block_hashes()

    def abort(self, request_id: str, done: Future[Completion]) -> None:
        with self._lock:
            running = self._running.get(request_id)
            if running is None or running.done is not done:
                return
            self._generated += self._tokens(running)
            del self._running[request_id]
        self._llm.abort_request([running.internal_id], internal=True)

    def progress(self) -> dict[str, int]:
        with self._lock:
            counts = {request_id: self._tokens(running) for request_id, running in self._running.items()}
            counts[""] = self._generated + sum(counts.values())
        return counts

    def _tokens(self, running: _Running) -> int:
        request = self._scheduler.requests.get(running.internal_id)
        return 0 if request is None else int(request.num_output_tokens)

    @property
    def _scheduler(self) -> Any:
        return self._llm.engine_core.engine_core.scheduler

    def pause(self, drop_caches: bool) -> None:
        self._paused = True
        if drop_caches:
            self._drop_caches()

    def _drop_caches(self) -> None:
        """Running requests give their cache back; when they continue they recompute it, prompt and completion so far."""
        if not self._llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
            raise EngineDead("vLLM could not reset its caches: they may hold context of older weights")

    def resume(self) -> None:
        self._paused = False

    def receive(self, offer: TransferOffer) -> Loaded:
        """One refit: all workers stage, their receipts are compared, all load, the probe is scored, the label changes."""
        if not self._paused:
            raise ValueError("receive is called while paused")
        receipt = self._stage(offer)
        reach("producer.received")
        try:
            self._rpc("finish_weight_update")
        except Exception as error:
            raise EngineDead(f"loading version {offer.version} failed halfway: {error}") from error
        gap = self._probe_gap(receipt["probe"], offer.version)
        if not gap <= self._probe_limit:
            raise EngineDead(
                f"version {offer.version} loaded, but its log-probabilities on the probe differ from the learner's by {gap:.3g}, "
                f"more than {self._probe_limit:g} (refit.probe_limit)"
            )
        self._loads += 1
        self._salt_again()
        self._llm.set_weight_version(str(offer.version))
        self.version = offer.version
        return Loaded(offer.version, receipt["digest"], gap)

    def _stage(self, offer: TransferOffer) -> dict[str, Any]:
        join = {
            "backend": self._refit.backend,
            "at": asdict(offer.at),
            "world": offer.world,
            "rank_offset": offer.rank_offset,
            "timeout_s": offer.timeout_s,
        }
        plan = {"tensors": list(self.plan.tensors), "dtype": self.plan.dtype, "bucket_mib": self._refit.bucket_mib}
        self._rpc("init_weight_transfer_engine", join)
        self._rpc("start_weight_update")
        self._rpc("update_weights", plan)
        receipts: list[dict[str, Any]] = self._rpc("weir_receipt")
        failures = [receipt["failure"] for receipt in receipts if "failure" in receipt]
        if not failures and any(receipt != receipts[0] for receipt in receipts):
            failures = ["the workers did not receive the same weights"]
        if not failures and len(receipts[0]["probe"]) not in (0, len(self._probe) - 1):
            failures = [f"the learner scored {len(receipts[0]['probe'])} probe tokens, this engine {len(self._probe) - 1}"]
        if not failures:
            return receipts[0]
        self._rpc("weir_drop")
        self._rpc("finish_weight_update")
        message = f"version {offer.version}: {failures[0]}"
        if not for_member(self._refit.backend, offer.at).survives_failure:
            raise EngineDead(f"{message} (after a failed transfer of this kind the engine starts again)")
        raise TransferError(message)

    def _rpc(self, method: str, *args: Any) -> list[Any]:
        answers: list[Any] = self._llm.collective_rpc(method, args=args)
        return answers

    def _probe_gap(self, expected: Sequence[float], version: int) -> float:
        """Largest difference of log-probabilities on the probe; 0 if the learner scored none."""
        if not expected:
            return 0.0
        scored = self._score(self._probe, f"probe-{version}")
        return max(abs(ours - theirs) for ours, theirs in zip(scored, expected, strict=True))

    def _score(self, token_ids: list[int], salt: str) -> list[float]:
        """Log-probabilities [len - 1] of these tokens, while all other requests stand still."""
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False)
        with self._others_held():
            self._llm.add_request(salt, tokens_input(token_ids, cache_salt=salt), params)
            for _ in range(_PROBE_STEPS):
                for output in self._llm.step():
                    if output.finished:
                        rows = output.prompt_logprobs[1:]
                        return [float(row[token].logprob) for row, token in zip(rows, token_ids[1:], strict=True)]
        raise EngineDead(f"the probe sequence was not scored within {_PROBE_STEPS} steps")

    @contextmanager
    def _others_held(self) -> Iterator[None]:
        """Hide all requests from the scheduler, so that a step moves the probe alone.

        vLLM's own pause would stop the probe as well. Hidden requests keep their cache, unless hardly a block is free for the
        probe: then they give it back first.
        """
        from vllm.v1.core.sched.request_queue import create_request_queue

        scheduler = self._scheduler
        if scheduler.kv_cache_manager.block_pool.get_num_free_blocks() < 8:
            self._drop_caches()
        running, waiting = scheduler.running, scheduler.waiting
        scheduler.running, scheduler.waiting = [], create_request_queue(scheduler.policy)
        try:
            yield
        finally:
            scheduler.running, scheduler.waiting = running, waiting

    def dead(self, error: EngineDead) -> None:
        with self._lock:
            running, self._running = list(self._running.values()), {}
        for request in running:
            if request.done.set_running_or_notify_cancel():
                request.done.set_exception(EngineDead(str(error)))

    def close(self) -> None:
        if self._llm is not None:
            self._llm.engine_core.shutdown()
