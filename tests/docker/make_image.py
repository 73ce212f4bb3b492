"""Makes a local container image of Kafka out of the pinned jars and Java, where no image can be pulled.

    python tests/docker/make_image.py weir-kafka:local
    WEIR_KAFKA_IMAGE=weir-kafka:local tests/run.sh integration

The image takes the settings that `apache/kafka` takes: KAFKA_NODE_ID for node.id, and so on. It holds the jars, the Java
runtime, a shell with four commands, and the shared libraries that those need; nothing is fetched.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from broker_config.local.installation import Installation, install
from broker_config.local.server_properties import LOG4J2

COMMANDS = ("sh", "env", "sed", "tr", "mkdir")
ENTRYPOINT = """\
#!/bin/sh
set -eu
mkdir -p /data /tmp
# KAFKA_LOG_DIRS=/x becomes log.dirs=/x
env | sed -n 's/^KAFKA_\\([A-Z_]*\\)=/\\1=/p' | while IFS='=' read -r key value; do
    printf '%s=%s\\n' "$(printf %s "$key" | tr 'A-Z_' 'a-z.')" "$value"
done > /data/server.properties
echo log.dirs=/data/log >> /data/server.properties
set -f # the star is for Java to read
java="/java/bin/java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx512m -Dlog4j2.configurationFile=/log4j2.properties -cp /jars/*"
$java kafka.tools.StorageTool format -t 4L6g3nShT-eMCtK--X86sw -c /data/server.properties
exec $java kafka.Kafka /data/server.properties
"""


def shared_libraries(program: Path) -> set[Path]:
    """The files that the program needs at run time, its loader included."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+\.so\S*) \(0x", listed)}


def root_file_system(installation: Installation) -> bytes:
    """A tar of everything that the container holds."""
    java_home = installation.java.resolve().parent.parent
    shells = {
        name: Path(subprocess.check_output(["sh", "-c", f"command -v {name}"], text=True).strip()).resolve() for name in COMMANDS
    }
    libraries: set[Path] = set()
    for program in [installation.java, *java_home.glob("lib/**/*.so"), *shells.values()]:
        libraries |= {path for path in shared_libraries(program) if java_home not in path.parents}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        tar.add(java_home, "java")
        for jar in installation.jars:
            tar.add(jar, f"jars/{jar.name}")
        for name, program in shells.items():
            tar.add(program, f"bin/{name}")
        for library in libraries:
            tar.add(library, str(library).lstrip("/"))
        for name, text, mode in (("entrypoint.sh", ENTRYPOINT, 0o755), ("log4j2.properties", LOG4J2, 0o644)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), mode
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def main(name: str) -> None:
    tar = root_file_system(install(lambda line: print(line, file=sys.stderr)))
    command = ["docker", "import", "--change", "ENV PATH=/bin", "--change", 'CMD ["/bin/sh", "/entrypoint.sh"]', "-", name]
    subprocess.run(command, input=tar, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
