"""Which transport a transfer uses, and finding it by its name."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from schemas.weights.transports.protocol import Rendezvous, Transport


def find_transport(name: str) -> Transport:
    """The transport in the file `name`.py of this folder; `refit.backend` lists the names."""
    return cast(Transport, import_module(f"schemas.weights.transports.{name}").TRANSPORT)


def for_sender(backend: str, *, gpu: bool) -> Transport:
    """backend: `refit.backend`; gpu: whether the learner has one."""
    return find_transport(("nccl" if gpu else "gloo") if backend == "auto" else backend)


def for_member(backend: str, at: Rendezvous) -> Transport:
    """What the learner chose, as its rendezvous shows it: under `auto` its machine decides, not the member's."""
    return find_transport(("nccl" if at.nccl_id is not None else "gloo") if backend == "auto" else backend)
