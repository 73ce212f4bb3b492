"""Making a missing model in its own process, while the broker starts: this process must not import torch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from launch.exit_codes import WRONG_INPUT
from launch.models.recipes import is_model
from launch.observe.display import SIGN_OF_LIFE_S
from launch.observe.formats import short_path
from launch.observe.logtail import error_lines, tail
from launch.processes.children import Child
from launch.processes.specs import model_spec
from schemas.config.model import ModelConfig
from schemas.errors import WeirError

SHOWN_LINES = 12
LIMIT_S = 1800.0  # downloading a hundred megabytes over a slow line, and converting them


class ModelBuild:
    """Starts on entering, unless the model is there or no recipe is given; on leaving it is over, finished or not."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._child: Child | None = None

    def __enter__(self) -> ModelBuild:
        model, path = self._model, Path(self._model.path)
        if model.build is not None and not is_model(path):
            log_file = path.resolve().with_name(f"{path.name}.log")
            log_file.unlink(missing_ok=True)
            self._child = Child(model_spec(model, model.build, sys.executable, os.environ, log_file), Path.cwd())
        return self

    def wait(self, say: Callable[[str], None]) -> bool:
        """Whether a model was made.

        Raises:
            WeirError: it failed, or took longer than `LIMIT_S`.
        """
        child = self._child
        if child is None:
            return False
        say(f"making the {self._model.build} model at {self._model.path}")
        begun = said = time.monotonic()
        while (code := child.poll()) is None:
            now = time.monotonic()
            if now - begun > LIMIT_S:
                raise WeirError(
                    f"making the {self._model.build} model took longer than {LIMIT_S:g} s; log: {short_path(child.log)}"
                )
            if now - said >= SIGN_OF_LIFE_S:
                said = now
                last = tail(child.log, 1)
                say(f"making the model, {now - begun:.0f} s{': ' + last[0] if last else ''}")
            time.sleep(0.1)
        if code != 0:
            # With 2 the recipe itself has printed what went wrong and what to do; else it crashed.
            lines = tail(child.log, SHOWN_LINES) if code == WRONG_INPUT else error_lines(child.log)
            shown = "\n".join(f"  {line}" for line in lines)
            raise WeirError(f"making the {self._model.build} model failed:\n{shown}\n  whole log: {short_path(child.log)}")
        child.log.unlink(missing_ok=True)
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._child is not None:
            self._child.kill()
