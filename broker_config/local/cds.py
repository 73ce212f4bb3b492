"""The class archive (AppCDS): Kafka's classes, parsed once and mapped by every later start of the broker and its tools.

A broker that is started on a throw-away folder records the list of classes; Java turns the list into an archive, which appears by
one rename. It also works with a Java that ships without an archive, such as a trimmed runtime.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from broker_config.cache import kafka_cache
from broker_config.deadline import Deadline
from broker_config.local.artifacts import Say
from broker_config.local.broker import LocalBroker
from broker_config.local.installation import Installation, run_java
from broker_config.processes import file_lock

TIMEOUT_S = 180.0


def make_archive(installation: Installation, say: Say) -> Path:
    """The class archive, made if there is none yet (about ten seconds).

    Raises:
        BrokerError: the broker does not start, or Java cannot make the archive.
        DeadlineExceeded
    """
    archive = installation.archive
    if archive.is_file():
        return archive
    deadline = Deadline(TIMEOUT_S)
    with file_lock(kafka_cache() / "classes.lock", deadline, "the making of Kafka's class archive"):
        if archive.is_file():
            return archive
        say("Kafka class archive: starting a broker once to see which classes it needs")
        with tempfile.TemporaryDirectory(prefix="weir-classes-") as folder:
            classes = Path(folder) / "classes.lst"
            broker = LocalBroker(Path(folder) / "broker", jvm_options=(f"-XX:DumpLoadedClassList={classes}",), say=say)
            try:
                broker.start(deadline)
            finally:
                broker.stop(deadline)
            unfinished = archive.with_suffix(".unfinished")
            options = [
                *installation.jvm_options,
                "-Xshare:dump",
                f"-XX:SharedClassListFile={classes}",
                f"-XX:SharedArchiveFile={unfinished}",
            ]
            run_java([str(installation.java), *options, "-cp", installation.classpath], "making Kafka's class archive")
            os.replace(unfinished, archive)
        say(f"Kafka class archive: {archive} ({archive.stat().st_size >> 20} MiB)")
    return archive
