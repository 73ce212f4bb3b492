from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from producer.engine.protocol import Completion, Ending
from producer.environments import registry
from producer.environments.addition import Addition
from producer.environments.base import (
    ContextFull,
    Environment,
    Prompt,
    PromptRefused,
    RolloutRequest,
    TrajectoryBuilder,
    named_rewards,
)
from producer.environments.exact_match import ExactMatch
from producer.environments.math_verify import MathVerify, VerificationFailed
from producer.environments.reasoning_gym import ReasoningGym
from producer.environments.single_turn import FunctionEnvironment, SingleTurn
from producer.environments.threads import Threads
from producer.environments.tiny_inc import TinyInc, held_out, increment
from schemas.config.data import EnvironmentConfig
from schemas.errors import ConfigError
from schemas.records.group import FinishReason, Span, Trajectory
from tests.fakes.word_tokenizer import EOS, word_tokenizer


def request(text: str = "q", max_new_tokens: int = 20, max_total_length: int = 50, **fields: Any) -> RolloutRequest:
    tokenizer = word_tokenizer()
    kind = fields.pop("kind", "rollout")
    prompt = Prompt(row=0, ids=np.array(tokenizer.encode(text), dtype="<u4"), text=text, **fields)
    return RolloutRequest(prompt, kind, 0, max_new_tokens, max_total_length, tokenizer)


def completion(text: str, version: int = 1, ending: Ending = Ending.STOP) -> Completion:
    ids = word_tokenizer().encode(text, add_special_tokens=False) + ([EOS] if ending is Ending.STOP else [])
    return Completion(ids, [-0.25] * len(ids), (Span(version, 0, len(ids)),), ending)


def rolled_out(environment: Environment, asked: RolloutRequest, reply: Completion) -> Trajectory:
    async def generate(prompt_ids: Any, max_new_tokens: int | None = None) -> Completion:
        return reply

    async def run() -> Trajectory:
        try:
            return await environment.rollout(asked, generate)
        finally:
            await environment.close()

    return asyncio.run(run())


# TrajectoryBuilder


def test_builder_shifts_spans_and_masks_the_environments_tokens() -> None:
    builder = TrajectoryBuilder(request())
    builder.add(completion("ab", version=4))
    builder.add_environment([9, 9])
    builder.add(completion("c", version=5, ending=Ending.LENGTH))
    t = builder.finish({"right": 1.0, "short": -0.5})
    assert t.mask.tolist() == [1, 1, 1, 0, 0, 1]
    assert t.logprobs.tolist() == [-0.25, -0.25, -0.25, 0, 0, -0.25]
    assert t.spans == (Span(4, 0, 3), Span(5, 5, 6))
    assert [array.dtype.str for array in (t.tokens, t.mask, t.logprobs)] == ["<u4", "|u1", "<f4"]
    assert (t.finish, t.reward) == (FinishReason.LENGTH, 0.5)


def test_builder_keeps_account_of_room() -> None:
    builder = TrajectoryBuilder(request("abcd", max_new_tokens=4, max_total_length=12))
    assert (builder.room, builder.space) == (4, 7)
    builder.add(completion("xy", ending=Ending.LENGTH))
    builder.add_environment([9, 9, 9, 9])
    assert (builder.room, builder.space) == (1, 1)
    assert len(builder.context) == 11
    with pytest.raises(ContextFull):
        builder.add_environment([9, 9])
    assert len(builder.context) == 11


def test_builder_refuses_an_empty_response_and_uneven_logprobs() -> None:
    with pytest.raises(ValueError, match="no token"):
        TrajectoryBuilder(request()).finish(1.0)
    with pytest.raises(ValueError, match="log-prob"):
        TrajectoryBuilder(request()).add(Completion([1, 2], [-0.5], (Span(0, 0, 2),), Ending.STOP))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), {}, "1.0", None, {"a": "b"}, {"a": float("nan")}, {1: 1.0}])
def test_a_score_that_is_no_number_is_an_error(score: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        named_rewards(score)


def test_scores_become_named_components() -> None:
    assert named_rewards(True) == {"reward": 1.0}
    assert named_rewards(np.float32(0.5)) == {"reward": 0.5}  # type: ignore[arg-type]
    assert named_rewards({"a": 1, "b": 0.5}) == {"a": 1.0, "b": 0.5}


# Built-in environments


@pytest.mark.parametrize(
    ("options", "text", "answer", "reward"),
    [
        ({}, " 42\n", "42", 1.0),
        ({"strip": False}, " 42\n", "42", 0.0),
        ({}, "Paris", "paris", 0.0),
        ({"case": False}, "Paris", "paris", 1.0),
        ({}, "42", 42, 1.0),
        ({}, "b", ["a", "b"], 1.0),
        ({}, "the answer is 42", "42", 0.0),
    ],
)
def test_exact_match(options: dict[str, Any], text: str, answer: Any, reward: float) -> None:
    t = rolled_out(ExactMatch(**options), request(answer=answer), completion(text))
    assert t.rewards == {"reward": reward}
    assert t.finish is FinishReason.STOP


@pytest.mark.parametrize(
    ("text", "ending", "reward", "exact"),
    [
        ("4205", Ending.STOP, 1.0, 1.0),
        ("4209", Ending.STOP, 0.75, 0.0),
        ("42", Ending.STOP, 0.5, 0.0),
        ("42055", Ending.LENGTH, 0.8, 0.0),
        ("4205", Ending.LENGTH, 0.8, 0.0),
        ("", Ending.STOP, 0.0, 0.0),
        ("1111", Ending.STOP, 0.0, 0.0),
    ],
)
def test_tiny_inc_counts_right_characters_and_validates_the_whole(text: str, ending: Ending, reward: float, exact: float) -> None:
    reply = completion(text, ending=ending)
    t = rolled_out(TinyInc(), request("3194>", answer="4205"), reply)
    assert t.reward == pytest.approx(reward)
    t = rolled_out(TinyInc(), request("3194>", answer="4205", kind="validation"), reply)
    assert t.rewards == {"exact": exact}


def test_tiny_inc_does_not_overlook_a_special_token_in_the_answer() -> None:
    first, second = (word_tokenizer().encode(text, add_special_tokens=False) for text in ("42", "05"))
    reply = Completion([*first, 0, *second, EOS], [-1.0] * 6, (Span(0, 0, 6),), Ending.STOP)
    assert rolled_out(TinyInc(), request("3194>", answer="4205"), reply).reward == pytest.approx(0.4)


def test_tiny_inc_never_trains_on_what_it_validates() -> None:
    task = TinyInc()
    validation = [task.generate(row, "validation") for row in range(200)]
    assert len({row["prompt"] for row in validation}) == 200
    assert all(held_out(row["prompt"][:-1]) and row["answer"] == increment(row["prompt"][:-1]) for row in validation)
    train = [task.generate(row, "train")["prompt"][:-1] for row in [*range(500), 1 << 48, (1 << 49) - 1]]
    assert not any(held_out(text) for text in train)
    assert len(set(train)) > 450
    assert increment("3194") == "4205"


def test_addition_holds_out_a_fifth_and_scores_the_last_integer() -> None:
    task = Addition()
    held = {task.generate(row, "validation")["prompt"] for row in range(48)}
    assert len(held) == 48 == task.rows("validation")
    assert not held & {task.generate(row, "train")["prompt"] for row in range(3000)}
    assert len({task.generate(row, "train")["prompt"] for row in range(3000)}) == 320
    row = task.generate(0, "train")
    for text, reward in [(f"the sum is {row['answer']}.", 1.0), (f"{row['answer']} or 99", 0.0), ("no idea", 0.0)]:
        assert rolled_out(task, request(answer=row["answer"], max_total_length=99), completion(text)).reward == reward


def test_math_verify_compares_values() -> None:
    cases = [
        (r"so \boxed{\frac{1}{2}}", "0.5", 1.0),
        ("The answer is 72.", "72", 1.0),
        ("The answer is 71.", "72", 0.0),
        ("The answer is 1,234.", 1234, 1.0),
        (r"\boxed{x + 1}", "$1 + x$", 1.0),
        ("no idea", "72", 0.0),
        ("", "72", 0.0),
    ]

    async def run() -> list[Any]:
        environment = MathVerify(timeout_s=60)
        try:
            return await asyncio.gather(*(environment.score("", text, answer, {}) for text, answer, _ in cases))
        finally:
            await environment.close()

    assert asyncio.run(run()) == [reward for *_, reward in cases]


def test_math_verify_kills_a_verification_that_does_not_end_and_goes_on() -> None:
    async def run() -> None:
        environment = MathVerify(timeout_s=0.5)
        endless = r"\boxed{9^{9^{9^{9}}}}", r"7^{7^{7^{7}}}"
        try:
            with pytest.raises(VerificationFailed, match=r"within 0.5 s"):
                await environment.score("", *endless, {})
            assert await environment.score("", "12", "12", {}) == 1.0
            with pytest.raises(PromptRefused):
                await environment.score("", "12", "", {})
        finally:
            await environment.close()

    asyncio.run(run())


def test_math_verify_may_score_a_verification_that_does_not_end() -> None:
    environment = MathVerify(timeout_s=0.5, timeout_score=0.0)
    asked = request(answer=r"7^{7^{7^{7}}}", max_total_length=99)
    assert rolled_out(environment, asked, completion(r"\boxed{9^{9^{9^{9}}}}")).reward == 0.0


def test_reasoning_gym_generates_and_scores() -> None:
    task = ReasoningGym("chain_sum", size=10, validation_size=5, min_digits=1, max_digits=1)
    assert (task.rows("train"), task.rows("validation")) == (10, 5)
    row = task.generate(3, "train")
    assert row == ReasoningGym("chain_sum", size=10, min_digits=1, max_digits=1).generate(3, "train")
    assert row["prompt"] != task.generate(3, "validation")["prompt"]
    fields = {"answer": row["answer"], "metadata": row}
    for text, reward in [(row["answer"], 1.0), (f"well <answer> {row['answer']} </answer>", 1.0), ("no", 0.0)]:
        t = rolled_out(task, request(max_total_length=200, **fields), completion(text))
        assert t.reward == reward


def test_reasoning_gym_has_no_end_even_for_tasks_that_prepare_their_items() -> None:
    task = ReasoningGym("list_functions")
    assert task.rows("train") is None
    assert task.generate((1 << 49) - 1, "train")["prompt"]
    assert task.generate(1001, "train") != task.generate(1, "train")


# The one-function form


def plain(prompt: str, completion: str, answer: Any, metadata: Any, bonus: float = 0.0) -> float:
    assert threading.current_thread() is not threading.main_thread()
    return float(completion == answer) + bonus


async def asynchronous(prompt: str, completion: str, answer: Any, metadata: Any) -> dict[str, float]:
    await asyncio.sleep(0)
    return {"right": float(completion == answer), "level": metadata["level"]}


def test_a_plain_function_runs_in_a_thread_with_its_arguments() -> None:
    environment = FunctionEnvironment(plain, {"bonus": 0.5})
    assert rolled_out(environment, request(answer="ok"), completion("ok")).rewards == {"reward": 1.5}


def test_an_async_function_is_awaited() -> None:
    environment = FunctionEnvironment(asynchronous, {})
    t = rolled_out(environment, request(answer="ok", metadata={"level": 2.0}), completion("no"))
    assert t.rewards == {"right": 0.0, "level": 2.0}


def test_what_a_function_raises_reaches_the_rollout() -> None:
    def broken(prompt: str, completion: str, answer: Any, metadata: Any) -> float:
        raise KeyError("level")

    with pytest.raises(KeyError):
        rolled_out(FunctionEnvironment(broken, {}), request(), completion("ok"))


def test_a_blocked_thread_holds_up_neither_the_loop_nor_the_others() -> None:
    async def run() -> None:
        threads, gate = Threads(limit=2), threading.Event()
        stuck = asyncio.ensure_future(threads.call(gate.wait))
        assert await asyncio.wait_for(threads.call(lambda: 7), 5) == 7
        second = asyncio.ensure_future(threads.call(gate.wait))
        third = asyncio.ensure_future(threads.call(lambda: 8))
        await asyncio.sleep(0)
        assert not third.done()
        gate.set()
        assert await asyncio.wait_for(third, 5) == 8
        assert await stuck and await second

    asyncio.run(run())


# Names


def named(name: str, **args: Any) -> EnvironmentConfig:
    return EnvironmentConfig(name=name, args=args)


def why(config: EnvironmentConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        registry.resolve(config)
    return str(caught.value)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_rewards.py").write_text(
        "from producer.environments.single_turn import SingleTurn\n"
        "def score(prompt, completion, answer, metadata, scale=1.0):\n    return scale\n"
        "def bad(completion, answer):\n    return 1.0\n"
        "class Own(SingleTurn):\n"
        "    def __init__(self, scale):\n        super().__init__()\n        self.scale = scale\n"
        "    def score(self, prompt, completion, answer, metadata):\n        return self.scale\n"
        "class NoScore(SingleTurn):\n    pass\n"
        "class NotOne:\n    pass\n"
        "NUMBER = 3\n"
    )
    (tmp_path / "broken_rewards.py").write_text("import json\nraise RuntimeError('boom')\n")
    (tmp_path / "needy_rewards.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("own_rewards", "broken_rewards", "needy_rewards"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "own_rewards"


@pytest.mark.parametrize("name", [n for n in registry.BUILT_IN if n != "reasoning_gym"])
def test_every_built_in_name_resolves_and_has_a_digest(name: str) -> None:
    assert isinstance(registry.resolve(named(name)), Environment)
    assert registry.digest(named(name)) == registry.digest(named(name))


def test_own_functions_and_classes_resolve_from_the_working_folder(own_module: str) -> None:
    function = registry.resolve(named(f"{own_module}:score", scale=2.0))
    assert rolled_out(function, request(), completion("x")).reward == 2.0
    own = registry.resolve(named(f"{own_module}:Own", scale=3.0))
    assert isinstance(own, SingleTurn)
    assert rolled_out(own, request(), completion("x")).reward == 3.0


def test_digest_follows_arguments_and_source(own_module: str, tmp_path: Path) -> None:
    first = registry.digest(named(f"{own_module}:score"))
    assert registry.digest(named(f"{own_module}:score", scale=2.0)) != first
    file = tmp_path / "own_rewards.py"
    file.write_text(file.read_text() + "# changed\n")
    assert registry.digest(named(f"{own_module}:score")) != first


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("exact_mach", {}, "did you mean exact_match?"),
        ("nothing", {}, "known: exact_match"),
        ("no_such_module:score", {}, "module no_such_module not found"),
        ("own_rewards:scor", {}, "did you mean score?"),
        ("own_rewards:bad", {}, "score(prompt, completion, answer, metadata)"),
        ("own_rewards:score", {"factor": 1}, "factor"),
        ("own_rewards:NUMBER", {}, "is a int"),
        ("own_rewards:NotOne", {}, "derive it"),
        ("own_rewards:NoScore", {}, "has no score"),
        ("own_rewards:Own", {}, "scale"),
        ("own_rewards:Own", {"scal": 1}, "did you mean scale?"),
        ("broken_rewards:score", {}, "boom"),
        ("needy_rewards:score", {}, "install a_library_that_is_not_there"),
        ("tiny_inc", {"digits": 2}, "digits=2"),
        ("tiny_inc", {"digit": 4}, "did you mean digits?"),
        ("reasoning_gym", {"task": "chain_sums"}, "did you mean chain_sum"),
    ],
)
def test_a_name_that_does_not_resolve_says_what_would(own_module: str, name: str, args: dict[str, Any], says: str) -> None:
    assert says in why(named(name, **args))
