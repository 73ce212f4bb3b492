"""From the config section `loss_fn` to the function that it names."""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from learner.grpo.inputs import LossInputs, Surrogate
from learner.grpo.objective import Loss
from schemas.config.loss import CustomLossConfig, LossConfig
from schemas.errors import ConfigError, Problem
from schemas.importing import import_named

KEY = "loss_fn.name"
FORM = "loss(curr_BT, inputs)"


def find_loss(cfg: LossConfig) -> Loss:
    """The loss that the section names, its settings bound.

    Raises:
        ConfigError: a function of the user's own that is not there, or does not take what it is given.
    """
    if isinstance(cfg, CustomLossConfig):
        return _own(cfg)
    return partial(import_module(f"learner.grpo.losses.{cfg.name}").surrogate, cfg=cfg)


def _own(cfg: CustomLossConfig) -> Loss:
    function = import_named(cfg.name, KEY)
    if not callable(function):
        raise ConfigError([Problem(KEY, cfg.name, f"is a {type(function).__name__}", f"name a function {FORM}")])
    # Before any model is loaded: a wrong argument would otherwise show after the first batch was generated.
    try:
        inspect.signature(function).bind(None, None, **cfg.args)
    except TypeError as error:
        called = FORM if not cfg.args else f"{FORM[:-1]}, {', '.join(f'{name}=...' for name in cfg.args)})"
        why = f"it takes {inspect.signature(function)} ({error})"
        raise ConfigError([Problem(KEY, cfg.name, why, f"it is called as {called}")]) from None

    def loss(curr_BT: Tensor, inputs: LossInputs) -> Surrogate:
        return _checked(cfg.name, function(curr_BT, inputs, **cfg.args), curr_BT, inputs)

    return loss


def _checked(name: str, found: Any, curr_BT: Tensor, inputs: LossInputs) -> Surrogate:
    """A cost alone is enough: the ratios for the metrics are then those of the plain policy gradient.

    Raises:
        TypeError, ValueError: something else was returned.
    """
    cost = found.cost_BT if isinstance(found, Surrogate) else found
    if not isinstance(cost, Tensor):
        raise TypeError(f"{name} returned a {type(found).__name__}, not a Surrogate or a tensor of each token's cost")
    if cost.shape != curr_BT.shape:
        raise ValueError(f"{name} returned a cost of shape {tuple(cost.shape)}, the micro batch has {tuple(curr_BT.shape)}")
    if isinstance(found, Surrogate):
        return found
    # Detached: metrics outlive the pass, and would keep its graph in memory with them.
    ratio_BT = torch.exp(((curr_BT - inputs.prev_BT) * inputs.token_mask_BT).detach())
    return Surrogate(cost, ratio_BT, ratio_BT)
