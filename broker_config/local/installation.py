"""A Kafka that can be run: a Java program, and jars that are downloaded or those of KAFKA_HOME.

The class archive (AppCDS) halves the start time of every Java program below. It is made once for one Java and one list of jars;
everything works without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_config.cache import kafka_cache
from broker_config.local.artifacts import Say, fetch, libs_folder
from broker_config.local.java import find_java, release_version
from schemas.errors import BrokerError, ConfigError, Problem

TOOL_TIMEOUT_S = 120.0

# Serial collection and the first compiler only: a small process that starts quickly. A broker moves bytes, it computes little.
JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
)


@dataclass(frozen=True, slots=True)
class Installation:
    """Java and Kafka's jars."""

    java: Path
    jars: tuple[Path, ...]

    @property
    def classpath(self) -> str:
        return ":".join(str(jar) for jar in self.jars)

    @property
    def archive(self) -> Path:
        """The file of the class archive of this Java and these jars; it may not exist."""
        real = self.java.resolve()
        identity = f"{real}\0{real.stat().st_mtime_ns}\0{self.classpath}"
        return kafka_cache() / f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.jsa"

    @property
    def jvm_options(self) -> tuple[str, ...]:
        """Options of every Java process. From version 24 on, Java warns of calls of Kafka's libraries; they are allowed here."""
        quiet = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")
        return (*JVM_OPTIONS, *quiet) if release_version(self.java) >= 24 else JVM_OPTIONS

    def command(self, main: str, *arguments: str, options: Iterable[str] = ()) -> list[str]:
        """The command line that runs a main class of Kafka."""
        archive = self.archive
        shared = [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if archive.is_file() else []
        return [str(self.java), *self.jvm_options, *shared, *options, "-cp", self.classpath, main, *arguments]

    def run(self, main: str, *arguments: str, doing: str, options: Iterable[str] = ()) -> str:
        """Run a main class to its end; returns what it printed.

        Raises:
            BrokerError: it failed or took longer than `TOOL_TIMEOUT_S`; the message starts with `doing`.
        """
        return run_java(self.command(main, *arguments, options=options), doing)


def run_java(command: Sequence[str], doing: str) -> str:
    """Run a Java command line to its end; see `Installation.run`."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BrokerError(f"{doing}: not done within {TOOL_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise BrokerError(f"{doing}: Java ended with code {done.returncode}:\n{output}")
    return done.stdout


def installed() -> Installation | None:
    """The Kafka on this machine, or None if it is not downloaded yet.

    Raises:
        ConfigError: no usable Java, or KAFKA_HOME holds no Kafka 4.
    """
    named = os.environ.get("KAFKA_HOME")
    if named:
        home = Path(named).expanduser().resolve()
        return Installation(find_java(), _jars_of_home(home))
    libs = libs_folder(kafka_cache())
    if not libs.is_dir():
        return None
    return Installation(find_java(), tuple(sorted(libs.glob("*.jar"))))


def install(say: Say) -> Installation:
    """The Kafka on this machine, downloaded first if necessary.

    Raises:
        ConfigError: no usable Java, or KAFKA_HOME holds no Kafka 4.
        BrokerError: the download failed.
    """
    found = installed()
    if found is not None:
        return found
    java = find_java()
    libs = fetch(kafka_cache(), say)
    return Installation(java, tuple(sorted(libs.glob("*.jar"))))


def _jars_of_home(home: Path) -> tuple[Path, ...]:
    jars = tuple(sorted((home / "libs").glob("*.jar")))
    if not any(jar.name.startswith("kafka_2.13-4.") for jar in jars):
        why = "its libs/ holds no kafka_2.13-4.*.jar"
        raise ConfigError([Problem("KAFKA_HOME", str(home), why, "name an unpacked Kafka 4, or unset it")])
    return jars
