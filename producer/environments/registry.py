"""From a config's environment section to an environment: built-in names, `module:Class` and `module:function`."""

from __future__ import annotations

import difflib
import hashlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from producer.environments.base import Environment
from producer.environments.single_turn import FunctionEnvironment
from schemas.config.data import EnvironmentConfig
from schemas.digests import digest as digest_of
from schemas.errors import ConfigError, Problem
from schemas.importing import import_named

BUILT_IN: Mapping[str, str] = {
    "exact_match": "producer.environments.exact_match:ExactMatch",
    "math_verify": "producer.environments.math_verify:MathVerify",
    "reasoning_gym": "producer.environments.reasoning_gym:ReasoningGym",
    "tiny_inc": "producer.environments.tiny_inc:TinyInc",
    "addition": "producer.environments.addition:Addition",
}
_FORM = "score(prompt, completion, answer, metadata)"


def resolve(config: EnvironmentConfig) -> Environment:
    """The environment that the section names, constructed with its `args`.

    Raises:
        ConfigError: unknown name, a module or attribute that is not there, a wrong signature, arguments that do not fit.
    """
    target = _target(config.name)
    if inspect.isclass(target):
        return _construct(config, target)
    if not callable(target):
        raise _error(config.name, f"is a {type(target).__name__}", f"name a class or a function {_FORM}")
    _check_function(config, target)
    return FunctionEnvironment(target, config.args)


def check(config: EnvironmentConfig) -> list[Problem]:
    """What `resolve` would raise."""
    try:
        resolve(config)
    except ConfigError as error:
        return list(error.problems)
    return []


def digest(config: EnvironmentConfig) -> str:
    """What two producers must have in common: name, arguments, a user's source file, versions of the scoring libraries.

    Raises:
        ConfigError: the name does not resolve.
    """
    target = _target(config.name)
    parts: dict[str, Any] = {"name": config.name, "args": config.args}
    if config.name not in BUILT_IN:
        file = inspect.getsourcefile(target)
        if file is not None:
            with open(file, "rb") as source:
                parts["source"] = hashlib.sha256(source.read()).hexdigest()
    libraries = getattr(target, "libraries", ())
    parts["libraries"] = {name: importlib.metadata.version(name) for name in libraries}
    return digest_of(parts)


def _error(value: str, why: str, fix: str, key: str = "environment.name") -> ConfigError:
    return ConfigError([Problem(key, value, why, fix)])


def _target(name: str) -> Any:
    path = BUILT_IN.get(name, name)
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        near = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(BUILT_IN)
        raise _error(name, "unknown environment", f"{hint} (your own: module:Class or module:function)")
    return import_named(path, "environment.name")


def _construct(config: EnvironmentConfig, cls: type) -> Environment:
    if not issubclass(cls, Environment):
        raise _error(config.name, "is a class, but no environment", "derive it from producer.environments.base.Environment")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise _error(config.name, f"has no {', '.join(missing)}", "write it, as producer/environments/base.py describes")
    if not inspect.iscoroutinefunction(cls.rollout):
        raise _error(config.name, "its rollout is no coroutine", "write it as `async def rollout(self, request, generate)`")
    _bind(config.name, "rollout", cls.rollout, (None, None, None), {}, "rollout(self, request, generate)")
    _check_args(config, cls)
    try:
        return cls(**config.args)
    except Exception as error:
        shown = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise _error(config.name, shown, "fix environment.args", "environment.args") from error


def _check_function(config: EnvironmentConfig, function: Callable[..., Any]) -> None:
    _bind(config.name, "the function", function, ("", "", None, {}), config.args, _FORM)


def _bind(
    name: str, what: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], form: str
) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        called = form if not kwargs else f"{form[:-1]}, {', '.join(f'{k}=...' for k in kwargs)})"
        raise _error(name, f"{what} takes {signature} ({error})", f"it is called as {called}") from None


def _check_args(config: EnvironmentConfig, cls: type) -> None:
    signature = inspect.signature(cls)
    try:
        signature.bind(**config.args)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "none"
        unknown = [arg for arg in config.args if arg not in signature.parameters]
        near = difflib.get_close_matches(unknown[0], signature.parameters, n=1) if unknown else []
        fix = f"did you mean {near[0]}?" if near else f"{config.name} takes: {known}"
        raise _error(config.name, str(error), fix, "environment.args") from None
