"""The start of a local broker: its ports, its data folder, its Java process.

Invariants: the ports of the last start are taken again if they are free, so that clients find the broker where it was; whatever
else is found in place of a data folder is never overwritten.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker_config.deadline import Deadline
from broker_config.local.folder import BrokerFolder, Instance, default_root
from broker_config.local.installation import Installation
from broker_config.local.ports import FIRST, LOW, ephemeral_low, free_ports, is_free
from broker_config.local.server_properties import LOG4J2, new_cluster_id, render, server_properties
from broker_config.processes import ProcessId
from schemas.errors import BrokerError, ConfigError, Problem

log = logging.getLogger(__name__)

HEAP = ("-Xms64m", "-Xmx512m")
PORT_WAIT_S = 3.0
PORT_CHECK_S = 0.05
LOG_END = 15  # lines

Ports = tuple[int, int]
"""The broker's and its controller's."""


class PortTaken(BrokerError):
    """The broker ended because another process had bound one of its ports."""


def choose_ports(folder: BrokerFolder, port: int | None, avoid: set[int]) -> Ports:
    """The demanded port; else the ports of the last start; else free ones.

    Raises:
        ConfigError: the demanded port is taken, or no ports are free.
    """
    if port is not None:
        if not is_free(port):
            why = "another process listens on it"
            raise ConfigError([Problem("local broker port", port, why, "stop that process, or choose another port")])
        return port, free_ports(1, first=port + 1, avoid={port, *avoid})[0]
    last = folder.last_instance()
    if last is not None and not avoid:
        # The ports of a killed process become free a moment after its end.
        former, wait = (last.port, last.controller_port), Deadline(PORT_WAIT_S)
        while not wait.expired:
            if all(is_free(port) for port in former):
                return former
            wait.pause(PORT_CHECK_S)
        log.warning("the former port of the local broker is taken, choosing another one port=%d", last.port)
    # Brokers of other folders search from elsewhere, so that two that start at once seldom choose the same port.
    first = FIRST if folder.root == default_root() else LOW + zlib.crc32(bytes(folder.root)) % (ephemeral_low() - LOW)
    chosen, controller_port = free_ports(2, first=first, avoid=avoid)
    return chosen, controller_port


@dataclass(frozen=True, slots=True)
class Startup:
    """Starts brokers on a folder. `properties` replace the built-in settings of `server_properties`."""

    folder: BrokerFolder
    installation: Installation
    properties: Mapping[str, str]
    jvm_options: Sequence[str]

    def launch(self, ports: Ports) -> tuple[Instance, subprocess.Popen[bytes]]:
        """A new broker process, which does not serve yet. The caller records it in the folder.

        Raises:
            BrokerError: the data folder cannot be formatted, or the process ended at once.
            FileError: the folder cannot be written.
        """
        self.folder.write(self.folder.log4j2_file, LOG4J2)
        self._format(ports)
        self.folder.write(self.folder.properties_file, render(server_properties(self.folder.data, *ports, self.properties)))
        self.folder.begin_log()
        options = (*HEAP, *self._logging, *self.jvm_options)
        command = self.installation.command(*self.folder.command_end, options=options)
        with self.folder.log_file.open("ab") as output:
            # In its own session: neither a Ctrl-C at the terminal nor the end of the starter ends the broker.
            child = subprocess.Popen(
                command, cwd=self.folder.root, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        identity = ProcessId.of(child.pid)
        if identity is None:
            child.wait()
            raise early_end(self.folder, child.pid)
        return Instance(identity, *ports), child

    @property
    def _logging(self) -> tuple[str]:
        return (f"-Dlog4j2.configurationFile={self.folder.log4j2_file}",)

    def _format(self, ports: Ports) -> None:
        """Make the data folder of a new broker; by one rename, so that a half formatted one never passes for whole."""
        if self.folder.formatted:
            return
        data = self.folder.data
        if data.exists():
            raise BrokerError(f"{data} is not a broker's data folder; move it away, then start again")
        unfinished = self.folder.root / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        properties = self.folder.root / "format.properties"
        self.folder.write(properties, render(server_properties(unfinished, *ports, self.properties)))
        arguments = ("format", "-t", new_cluster_id(), "-c", str(properties), "--standalone")
        doing = "formatting the local broker's data folder"
        self.installation.run("kafka.tools.StorageTool", *arguments, doing=doing, options=self._logging)
        os.replace(unfinished, data)
        properties.unlink()


def early_end(folder: BrokerFolder, pid: int) -> BrokerError:
    """The error for a broker that ended during its start, with the end of its log."""
    lines = folder.log_lines()
    why = f" ({found})" if (found := folder.fault()) is not None else ""
    end = "\n".join(lines[-LOG_END:])
    message = f"the local broker (pid {pid}) ended during its start{why}; the end of {folder.log_file}:\n{end}"
    return PortTaken(message) if any("Address already in use" in line for line in lines) else BrokerError(message)
