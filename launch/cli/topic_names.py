"""The topics that a command line means, by their full names."""

from __future__ import annotations

from collections.abc import Sequence

from broker_config.topics import SINGLE, VERSIONED, TopicName, Topics, parse
from schemas.errors import ConfigError, Problem


def resolve_topics(words: Sequence[str], run_id: str, existing: Sequence[str], version: int | None) -> list[str]:
    """Full names of the topics that are meant by short names (`control`, `trajectories`), names with a version, or full ones.

    `trajectories` and `validation` without a version mean all of the run, in order.

    Raises:
        ConfigError: a word that is not a topic, or a topic that the run does not have.
    """
    names: list[str] = []
    for word in words or SINGLE:
        names += _matching(word, run_id, existing, version)
    missing = [name for name in names if name not in existing]
    if missing:
        fix = "weir topics lists them" if existing else "the run has no topics there; is it the right broker?"
        raise ConfigError([Problem("TOPIC", name, "the broker does not have it", fix) for name in missing])
    return names


def _matching(word: str, run_id: str, existing: Sequence[str], version: int | None) -> list[str]:
    if parse(word) is not None:
        return [word]
    topics = Topics(run_id)
    kind, _, rest = word.partition(".")
    if kind in VERSIONED:
        try:
            wanted = int(rest.removeprefix("v")) if rest else version
        except ValueError:
            raise ConfigError([Problem("TOPIC", word, "not of the form trajectories.v00000012", "use --version 12")]) from None
        if wanted is not None:
            return [topics.trajectories(wanted) if kind == "trajectories" else topics.validation(wanted)]
        return sorted(name for name in existing if _is(parse(name), run_id, kind))
    if word in SINGLE:
        return [f"{run_id}.{word}"]
    known = ", ".join((*SINGLE, *VERSIONED))
    raise ConfigError([Problem("TOPIC", word, "not a topic of a run", f"use a full name or one of {known}")])


def _is(name: TopicName | None, run_id: str, kind: str) -> bool:
    return name is not None and name.run_id == run_id and name.kind == kind
