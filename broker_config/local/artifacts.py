"""The pinned jars of Kafka: downloaded once, each checked against its sha256.

Invariant: a folder `libs-*` is either absent, or complete and checked; it appears by one rename. An interrupted download is
resumed: finished files are kept, a damaged one is fetched again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from broker_config.deadline import Deadline
from broker_config.processes import file_lock
from schemas.errors import BrokerError

LIST = Path(__file__).with_name("kafka_artifacts.txt")
THREADS = 8
REQUEST_TIMEOUT_S = 30
TRIES = 4
PROGRESS_S = 2.0
FETCH_TIMEOUT_S = 900.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Artifact:
    """One jar: its Maven coordinates, and the digest that it must have."""

    group: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def artifacts() -> list[Artifact]:
    """The pinned list; each line of its file is `group:artifact:version sha256`."""
    pinned: list[Artifact] = []
    for line in LIST.read_text(encoding="ascii").splitlines():
        coordinates, sha256 = line.split()
        group, name, version = coordinates.split(":")
        pinned.append(Artifact(group, name, version, sha256))
    return pinned


def libs_folder(root: Path) -> Path:
    """The folder below `root` for the jars of the present list; another list has another folder."""
    digest = hashlib.sha256(LIST.read_bytes()).hexdigest()
    return root / f"libs-{digest[:12]}"


def fetch(root: Path, say: Say) -> Path:
    """The folder of jars below `root`, downloaded if there is none yet.

    Raises:
        BrokerError: a file could not be downloaded, or has another digest than the pinned one.
        DeadlineExceeded: another process was downloading the whole time.
    """
    libs = libs_folder(root)
    if libs.is_dir():
        return libs
    deadline = Deadline(FETCH_TIMEOUT_S)
    with file_lock(root / "fetch.lock", deadline, "the download of Kafka's jars"):
        if not libs.is_dir():
            _download(root, libs, deadline, say)
    return libs


def _download(root: Path, libs: Path, deadline: Deadline, say: Say) -> None:
    pinned = artifacts()
    downloads = root / "downloads"
    say(f"Kafka jars: downloading {len(pinned)} files (55 MB) to {libs}")
    done = 0
    reported_at = time.monotonic()
    files: dict[Artifact, Path] = {}
    with ThreadPoolExecutor(THREADS, thread_name_prefix="jars") as pool:
        pending = {pool.submit(_fetch_one, artifact, downloads): artifact for artifact in pinned}
        try:
            for future in as_completed(pending, timeout=deadline.remaining()):
                files[pending[future]] = future.result()
                done += 1
                if time.monotonic() - reported_at >= PROGRESS_S:
                    reported_at = time.monotonic()
                    say(f"Kafka jars: {done} of {len(pinned)}")
        except TimeoutError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise _failed(f"{done} of {len(pinned)} files after {deadline.seconds:g} s") from None
        except BrokerError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    unfinished = root / f"{libs.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for artifact, file in files.items():
        os.replace(file, unfinished / artifact.file_name)
    os.replace(unfinished, libs)
    shutil.rmtree(downloads, ignore_errors=True)
    say(f"Kafka jars: {done} of {len(pinned)}, all digests are right")


def _fetch_one(artifact: Artifact, downloads: Path) -> Path:
    """One jar with the right digest; tried again after a broken connection and after a damaged file."""
    # Imported here: only a first start needs it.
    from jgo.maven import MavenContext, PythonResolver

    mirror = os.environ.get("WEIR_MAVEN_MIRROR")
    context = MavenContext(
        repo_cache=downloads,
        resolver=PythonResolver(),
        remote_repos={"mirror": mirror} if mirror else None,
        timeout=REQUEST_TIMEOUT_S,
    )
    wanted = context.project(artifact.group, artifact.name).at_version(artifact.version).artifact()

    def attempt() -> Path:
        file = Path(wanted.resolve())
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != artifact.sha256:
            file.unlink()  # cut off by an interruption, or not the pinned one: never kept
            raise OSError(f"digest {found[:12]}... instead of {artifact.sha256[:12]}...")
        return file

    retrying = Retrying(
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(multiplier=0.5, max=8),
        retry=retry_if_exception_type((OSError, RuntimeError, AssertionError)),
        reraise=True,
    )
    try:
        return retrying(attempt)
    except (OSError, RuntimeError, AssertionError) as error:
        raise _failed(f"{artifact.file_name}: {error}") from error


def _failed(what: str) -> BrokerError:
    return BrokerError(
        f"could not download Kafka's jars: {what}\n"
        "check the network (WEIR_MAVEN_MIRROR may name a mirror of Maven Central, KAFKA_HOME an unpacked Kafka 4), then run\n"
        "`python -m broker_config fetch` again; finished files are kept"
    )
