from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from producer.engine.protocol import EngineDead, Sampling
from producer.environments.base import Environment, Generate, Prompt, PromptRefused, RolloutRequest, TrajectoryBuilder
from producer.environments.exact_match import ExactMatch
from producer.environments.single_turn import FunctionEnvironment
from producer.rollout import Limits, PromptFailed, RolloutFailed, roll_out
from schemas.records.group import FinishReason, Span, Trajectory
from tests.fakes.producer.reply_engine import Call, Reply, ReplyEngine
from tests.fakes.producer.word_tokenizer import word_tokenizer

TOKENIZER = word_tokenizer()
PATIENT = Limits(max_total_length=64, max_retries=2, timeout_s=60.0)
HASTY = Limits(max_total_length=64, max_retries=1, timeout_s=0.1)


class Calculator(Environment):
    """Several turns: `a+b=` is answered by the environment, anything else ends the episode."""

    async def rollout(self, request: RolloutRequest, generate: Generate) -> Trajectory:
        builder = TrajectoryBuilder(request)
        calls = 0
        while builder.room > 0:
            completion = await generate(builder.context)
            builder.add(completion)
            text = request.tokenizer.decode(list(completion.token_ids), skip_special_tokens=True)
            if not text.endswith("="):
                return builder.finish({"right": float(text == request.prompt.answer), "calls": -0.1 * calls})
            calls += 1
            left, right = text[:-1].split("+")
            builder.add_environment(request.tokenizer.encode(str(int(left) + int(right)), add_special_tokens=False))
        return builder.finish({"right": 0.0, "calls": -0.1 * calls}, FinishReason.LENGTH)


def prompt(text: str = "2 + 2 = ", answer: Any = "4") -> Prompt:
    return Prompt(row=7, ids=np.array(TOKENIZER.encode(text), dtype="<u4"), text=text, answer=answer)


def engine(reply: Reply | str, **fields: Any) -> ReplyEngine:
    return ReplyEngine(TOKENIZER, reply if callable(reply) else lambda call: reply, **fields)


def rollout(
    fake: ReplyEngine, environment: Environment | None = None, limits: Limits = PATIENT, **fields: Any
) -> Coroutine[Any, Any, tuple[Trajectory, ...]]:
    arguments: dict[str, Any] = {
        "key": "v00000012/s0031/d0/a0",
        "kind": "rollout",
        "prompt": prompt(),
        "count": 4,
        "environment": environment or ExactMatch(),
        "engine": fake,
        "sampling": Sampling(max_new_tokens=10, temperature=1.0, top_p=1.0, top_k=None),
        "tokenizer": TOKENIZER,
        "limits": limits,
    }
    return roll_out(**{**arguments, **fields})


def trajectory(request_id: str) -> int:
    """Index of the trajectory that an engine request belongs to."""
    return int(request_id.split("/")[-3].removeprefix("t"))


def test_a_group_is_all_of_its_trajectories_in_order() -> None:
    fake = engine(lambda call: "4" if trajectory(call.request_id) % 2 else "5")
    group = asyncio.run(rollout(fake, priority=3))
    assert [t.reward for t in group] == [0.0, 1.0, 0.0, 1.0]
    assert all(t.finish is FinishReason.STOP and t.spans == (Span(3, 0, 2),) for t in group)
    assert sorted(call.request_id for call in fake.calls) == [f"v00000012/s0031/d0/a0/t{i}/r0/g0" for i in range(4)]
    assert {call.priority for call in fake.calls} == {3}
    assert all(call.prompt_ids == prompt().ids.tolist() for call in fake.calls)


def test_what_does_not_fit_is_truncated_and_finished() -> None:
    (t,) = asyncio.run(rollout(engine("x" * 50), count=1))
    assert (t.finish, len(t.tokens)) == (FinishReason.LENGTH, 10)


def test_the_models_length_bounds_a_completion_too() -> None:
    fake = engine("x" * 50)
    limits = Limits(max_total_length=len(prompt().ids) + 3, max_retries=0, timeout_s=60.0)
    (t,) = asyncio.run(rollout(fake, limits=limits, count=1))
    assert len(t.tokens) == 3
    assert fake.calls[0].sampling.max_new_tokens == 3


def test_several_turns_share_the_bounds_and_mask_the_environment() -> None:
    def reply(call: Call) -> str:
        return "12+30=" if call.request_id.endswith("g0") else "42"

    fake = engine(reply)
    (t,) = asyncio.run(rollout(fake, Calculator(), count=1, prompt=prompt(answer="42")))
    assert t.rewards == {"right": 1.0, "calls": -0.1}
    assert t.mask.tolist() == [1] * 7 + [0] * 2 + [1] * 3
    assert t.spans == (Span(3, 0, 7), Span(3, 9, 12))
    assert TOKENIZER.decode(t.tokens.tolist()) == "12+30=</s>4242</s>"
    assert fake.calls[1].prompt_ids == [*prompt().ids.tolist(), *t.tokens[:9].tolist()]
    assert fake.calls[1].sampling.max_new_tokens == 3


def test_an_episode_that_uses_up_its_tokens_is_truncated() -> None:
    (t,) = asyncio.run(rollout(engine("1+1="), Calculator(), count=1))
    assert t.finish is FinishReason.LENGTH
    assert t.generated_tokens <= 10


def test_a_failed_trajectory_is_tried_again_alone() -> None:
    def reply(call: Call) -> str | BaseException:
        return RuntimeError("hiccup") if "/t2/r0/" in call.request_id else "4"

    fake = engine(reply)
    group = asyncio.run(rollout(fake))
    assert [t.reward for t in group] == [1.0] * 4
    assert sorted(c.request_id[22:] for c in fake.calls) == ["t0/r0/g0", "t1/r0/g0", "t2/r0/g0", "t2/r1/g0", "t3/r0/g0"]


def test_a_trajectory_that_keeps_failing_fails_the_group_and_aborts_the_rest() -> None:
    async def run() -> ReplyEngine:
        never = asyncio.Event()
        fake = engine(lambda call: RuntimeError("broken") if "/t1/" in call.request_id else never)
        with pytest.raises(RolloutFailed, match=r"trajectory 1, tried 3 times.*broken"):
            await rollout(fake)
        return fake

    fake = asyncio.run(run())
    assert len(fake.aborted) == 3
    assert not fake.tokens


def test_a_failing_score_is_a_failed_trajectory_and_no_reward() -> None:
    def score(prompt: str, completion: str, answer: Any, metadata: Any) -> float:
        raise ZeroDivisionError("no score")

    with pytest.raises(RolloutFailed, match="no score"):
        asyncio.run(rollout(engine("4"), FunctionEnvironment(score, {})))


@pytest.mark.parametrize("value", [float("nan"), "good", {}])
def test_a_score_that_is_no_number_is_a_failed_trajectory(value: Any) -> None:
    with pytest.raises(RolloutFailed):
        asyncio.run(rollout(engine("4"), FunctionEnvironment(lambda p, c, a, m: value, {})))


def test_a_hanging_score_is_found() -> None:
    async def score(prompt: str, completion: str, answer: Any, metadata: Any) -> float:
        await asyncio.Event().wait()
        return 1.0

    with pytest.raises(RolloutFailed, match="waiting for the environment"):
        asyncio.run(rollout(engine("4"), FunctionEnvironment(score, {}), HASTY))


def test_a_request_without_tokens_is_found_and_aborted() -> None:
    async def run() -> ReplyEngine:
        never = asyncio.Event()
        fake = engine(lambda call: never if "/t3/" in call.request_id else "4")
        with pytest.raises(RolloutFailed, match=r"no progress for 0.1 s, waiting for the engine \(turn 0\)"):
            await rollout(fake, limits=HASTY)
        return fake

    fake = asyncio.run(run())
    assert [name[22:] for name in fake.aborted] == ["t3/r0/g0", "t3/r1/g0"]


def test_a_slow_request_with_tokens_is_never_cut() -> None:
    async def run() -> tuple[Trajectory, ...]:
        loop, gate = asyncio.get_running_loop(), asyncio.Event()
        fake = engine(lambda call: gate)
        work = asyncio.ensure_future(rollout(fake, ExactMatch(), HASTY, count=1, prompt=prompt(answer="ok")))
        await fake.started.wait()
        end = loop.time() + 4 * HASTY.timeout_s
        while loop.time() < end:
            for name in fake.tokens:
                fake.tokens[name] += 1
            await asyncio.sleep(HASTY.timeout_s / 4)
        gate.set()
        return await work

    (t,) = asyncio.run(run())
    assert t.reward == 1.0


def test_a_queued_request_gets_on_while_the_engine_works_for_others() -> None:
    async def run() -> tuple[Trajectory, ...]:
        loop, gate = asyncio.get_running_loop(), asyncio.Event()
        fake = engine(lambda call: gate)
        work = asyncio.ensure_future(rollout(fake, ExactMatch(), HASTY, count=1))
        await fake.started.wait()
        end = loop.time() + 4 * HASTY.timeout_s
        while loop.time() < end:
            fake.total += 1
            await asyncio.sleep(HASTY.timeout_s / 4)
        gate.set()
        return await work

    assert len(asyncio.run(run())) == 1


def test_a_paused_engine_costs_no_time() -> None:
    async def run() -> tuple[Trajectory, ...]:
        loop, gate = asyncio.get_running_loop(), asyncio.Event()
        loop.call_later(4 * HASTY.timeout_s, gate.set)
        return await rollout(engine(lambda call: gate), ExactMatch(), HASTY, count=1, frozen=lambda: not gate.is_set())

    assert len(asyncio.run(run())) == 1


def test_a_prompt_that_leaves_no_room_fails_as_a_prompt() -> None:
    fake = engine("4")
    limits = Limits(max_total_length=len(prompt().ids), max_retries=2, timeout_s=60.0)
    with pytest.raises(PromptFailed, match="row 7: a prompt of 9 tokens, allowed 1 to 8"):
        asyncio.run(rollout(fake, limits=limits))
    assert fake.calls == []


def test_a_prompt_that_the_engine_refuses_fails_as_a_prompt() -> None:
    fake = engine(lambda call: ValueError("longer than max_model_len"))
    with pytest.raises(PromptFailed, match="max_model_len"):
        asyncio.run(rollout(fake, count=1))
    assert len(fake.calls) == 1


def test_a_later_turn_that_the_engine_refuses_is_a_failed_trajectory() -> None:
    fake = engine(lambda call: "1+1=" if call.request_id.endswith("g0") else ValueError("too long"))
    with pytest.raises(RolloutFailed, match="turn 1"):
        asyncio.run(rollout(fake, Calculator(), count=1))


def test_a_prompt_that_the_environment_refuses_is_not_tried_again() -> None:
    def score(prompt: str, completion: str, answer: Any, metadata: Any) -> float:
        raise PromptRefused("no such puzzle")

    fake = engine("4")
    with pytest.raises(PromptFailed, match="no such puzzle"):
        asyncio.run(rollout(fake, FunctionEnvironment(score, {}), count=1))
    assert len(fake.calls) == 1


def test_a_dead_engine_is_passed_on() -> None:
    fake = engine(lambda call: EngineDead("gone") if "/t1/" in call.request_id else "4")
    with pytest.raises(EngineDead, match="gone"):
        asyncio.run(rollout(fake))


def test_cancelling_a_group_aborts_all_of_its_requests() -> None:
    async def run() -> ReplyEngine:
        never = asyncio.Event()
        fake = engine(lambda call: never)
        work = asyncio.ensure_future(rollout(fake))
        await fake.started.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return fake

    fake = asyncio.run(run())
    assert len(fake.aborted) == len(fake.calls) == 4


def test_a_cancellation_from_inside_the_engine_is_a_failed_trajectory() -> None:
    fake = engine(lambda call: asyncio.CancelledError() if "/t1/r0/" in call.request_id else "4")
    assert len(asyncio.run(rollout(fake))) == 4


@pytest.mark.parametrize("broken", ["nothing", "lengths", "too_long", "nan"])
def test_a_trajectory_built_wrongly_is_a_failed_one(broken: str) -> None:
    class ByHand(Environment):
        async def rollout(self, request: RolloutRequest, generate: Generate) -> Trajectory:
            builder = TrajectoryBuilder(request)
            builder.add(await generate(builder.context))
            t = builder.finish(1.0)
            if broken == "nothing":
                return None  # type: ignore[return-value]
            n = 100 if broken == "too_long" else len(t.tokens)
            logprobs = np.full(n, np.nan if broken == "nan" else -1.0, dtype="<f4")
            mask = np.ones(n + (broken == "lengths"), dtype="|u1")
            return dataclasses.replace(t, tokens=np.ones(n, dtype="<u4"), mask=mask, logprobs=logprobs)

    with pytest.raises(RolloutFailed):
        asyncio.run(rollout(engine("4"), ByHand(), count=1))


def test_an_environment_that_asks_for_more_than_it_has_fails_with_a_reason() -> None:
    class Greedy(Environment):
        async def rollout(self, request: RolloutRequest, generate: Generate) -> Trajectory:
            while True:
                await generate(request.prompt.ids.tolist())

    with pytest.raises(RolloutFailed, match="10 of 10 generated"):
        asyncio.run(rollout(engine("x" * 50), Greedy(), count=1))
