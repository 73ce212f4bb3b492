"""The house keeps its shape: layers, no circles, small folders and modules, docstrings at the doors, typed messages.

CONTRIBUTING.md draws it. The import graph is grimp's: imports under TYPE_CHECKING and inside of functions count too.
"""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import grimp
import pytest

from learner import commands
from learner.link import messages

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "broker_config", "producer", "learner", "launch")
MOST_MODULES, MOST_LINES = 13, 400

LAYERS = {
    "packages": ("launch", grimp.Layer("producer", "learner", independent=True), "broker_config", "schemas"),
    "dispatcher": (
        "learner.dispatcher.service",
        "learner.dispatcher.serving",
        "learner.dispatcher.takeover",
        "learner.dispatcher.deciding",
        "learner.dispatcher.state",
    ),
    "learner": (
        "learner.loop",
        grimp.Layer("learner.worker", "learner.metrics_log"),
        "learner.transfer",
        "learner.model",
        "learner.grpo",
    ),
    "dispatcher and ranks": (
        "learner.dispatcher",
        "learner.checkpoint",
        grimp.Layer("learner.link", "learner.commands", independent=True),
    ),
    "schemas": ("schemas.records", "schemas.identity", "schemas.errors"),
    "config": ("schemas.config", "schemas.errors"),
}
PURE = (
    "learner.dispatcher.deciding",
    "learner.dispatcher.state",
    "learner.grpo",
    "producer.core",
    "launch.supervise.supervision",
    "schemas.records",
)
IMPURE = ("confluent_kafka", "socket", "subprocess", "threading", "time", "asyncio")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


def own(graph: grimp.ImportGraph) -> list[str]:
    return sorted(module for module in graph.modules if module.partition(".")[0] in PACKAGES)


def imports_of(graph: grimp.ImportGraph, module: str) -> list[str]:
    return [name for name in graph.find_modules_directly_imported_by(module) if name.partition(".")[0] in PACKAGES]


def no_circle(needs: dict[str, set[str]]) -> None:
    try:
        list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_lower_layers_import_nothing_of_higher_ones(layers: tuple[Any, ...], graph: grimp.ImportGraph) -> None:
    for layer in layers:
        for module in layer.module_tails if isinstance(layer, grimp.Layer) else (layer,):
            assert module in graph.modules, f"{module} is no module any more"
    found = graph.find_illegal_dependencies_for_layers(layers=layers)
    assert [f"{d.importer} -> {d.imported}" for d in found] == []


def test_no_module_imports_itself_by_way_of_others(graph: grimp.ImportGraph) -> None:
    no_circle({module: set(imports_of(graph, module)) for module in own(graph)})


def test_no_folder_imports_itself_by_way_of_others(graph: grimp.ImportGraph) -> None:
    """A folder and those inside of it are one here."""

    def folder(module: str) -> str:
        return module if graph.find_children(module) else module.rpartition(".")[0]

    needs: dict[str, set[str]] = defaultdict(set)
    for module in own(graph):
        for imported in imports_of(graph, module):
            importer, other = folder(module), folder(imported)
            if not f"{importer}.".startswith(f"{other}.") and not f"{other}.".startswith(f"{importer}."):
                needs[importer].add(other)
    no_circle(needs)


@pytest.mark.parametrize("room", PURE)
def test_cores_do_no_io_and_look_at_no_clock(room: str, graph: grimp.ImportGraph) -> None:
    modules = {room, *graph.find_descendants(room)}
    found = {
        f"{module} -> {name}" for module in modules for name in graph.find_modules_directly_imported_by(module) if name in IMPURE
    }
    assert found == set()


def folders() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (path.parent for path in (ROOT / package).rglob("__init__.py"))


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


def test_no_folder_is_a_hall() -> None:
    sizes = {str(f.relative_to(ROOT)): len([m for m in f.glob("*.py") if not m.stem.startswith("__")]) for f in folders()}
    assert {name: size for name, size in sizes.items() if size > MOST_MODULES} == {}


def test_no_module_is_a_heap() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_every_folder_says_what_lives_in_it() -> None:
    silent = [f for f in folders() if not ast.get_docstring(ast.parse((f / "__init__.py").read_text(encoding="utf-8")))]
    assert [str(folder.relative_to(ROOT)) for folder in silent] == []


def test_every_folder_with_modules_is_a_package() -> None:
    assert [str(path) for path in modules() if not (path.parent / "__init__.py").exists()] == []


def contains_any(annotation: Any) -> bool:
    return annotation is Any or any(contains_any(part) for part in get_args(annotation))


@pytest.mark.parametrize("module", [messages, commands], ids=lambda module: module.__name__)
def test_messages_between_processes_are_typed_to_the_last_field(module: ModuleType) -> None:
    classes = [c for c in vars(module).values() if dataclasses.is_dataclass(c) and c.__module__ == module.__name__]
    assert len(classes) > 5
    for message in classes:
        for name, annotation in get_type_hints(message).items():
            assert not contains_any(annotation), f"{message}.{name}"
