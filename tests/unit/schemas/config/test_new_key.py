"""Adding a key to the config is one edit, adding a section two: everything else follows from the field."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakes.source_tree import SourceTree

PROGRAM = """
import json, sys
from schemas.config.config import KEYS
from schemas.config.file import load_for_process, parse, read
from schemas.errors import ConfigError
from tests.docs.config_table import tables

key, value, wrong = sys.argv[1:]
base = load_for_process("launch/configs/tiny.yaml", ["run.id=t"])
config = load_for_process("launch/configs/tiny.yaml", ["run.id=t", f"{key}={value}"])
section, name = key.split(".")
_, problems = parse(read("launch/configs/tiny.yaml", [f"{key}={wrong}"]))
print(json.dumps({
    "known": [k.path for k in KEYS].count(key),
    "value": getattr(getattr(config, section), name),
    "default": getattr(getattr(base, section), name),
    "in_the_file": f"{name}: {value}" in config.to_yaml(),
    "wrong": [str(problem) for problem in problems],
    "documented": [line for line in tables().splitlines() if f"`{key}`" in line],
    "digest_changed": config.digest != base.digest,
}))
"""


def test_a_key_is_one_edit(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path / "tree")
    file = "schemas/config/grpo.py"
    text = '    warm_up_steps: Annotated[int, Field(ge=0)] = 3\n    """Steps until the learning starts."""\n'
    tree.insert(file, "    val_period:", text)
    assert tree.changed == [file]
    found = json.loads(tree.run(PROGRAM, "grpo.warm_up_steps", 7, -1))
    (line,) = found.pop("documented")
    (problem,) = found.pop("wrong")
    assert "Steps until the learning starts." in line and "`3`" in line
    assert problem.startswith("grpo.warm_up_steps=-1")
    assert found == {"known": 1, "value": 7, "default": 3, "in_the_file": True, "digest_changed": True}


def test_a_section_is_two_edits(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path / "tree")
    section = '''"""Section `weather`."""

from __future__ import annotations

from schemas.config.base import Section


class WeatherConfig(Section):
    """What it is like outside."""

    rain: bool = False
    """Whether it rains."""
'''
    tree.add("schemas/config/weather.py", section)
    file = "schemas/config/config.py"
    tree.insert(file, "from schemas.digests import", "from schemas.config.weather import WeatherConfig\n")
    field = "    weather: WeatherConfig = Field(default_factory=WeatherConfig)\n"
    tree.insert(file, "\n    @property\n    def sections", field)
    assert tree.changed == [file, "schemas/config/weather.py"]
    found = json.loads(tree.run(PROGRAM, "weather.rain", "true", "blue"))
    (line,) = found.pop("documented")
    assert "Whether it rains." in line
    assert found.pop("wrong")[0].startswith("weather.rain=")
    assert found == {"known": 1, "value": True, "default": False, "in_the_file": True, "digest_changed": False}
