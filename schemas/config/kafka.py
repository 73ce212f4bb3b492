"""Section `kafka`: the broker and the topics."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from schemas.config.base import RESUME, Section


class SecurityConfig(Section):
    """How clients authenticate. A secret is given only as `env:NAME` or `file:PATH`."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How clients connect."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """Login mechanism; the SASL protocols need it."""
    username: str | None = None
    """Login name; the SASL protocols need it."""
    password: SecretStr | None = None
    """`env:NAME` or `file:PATH`, never the password itself."""
    ca_location: str | None = None
    """PEM file of the CA that signed the broker's certificate; null: the system's CAs."""

    @model_validator(mode="after")
    def _secret_by_reference(self) -> SecurityConfig:
        if self.password is not None and not self.password.get_secret_value().startswith(("env:", "file:")):
            raise ValueError("a secret may stand in a config only as env:NAME or file:PATH")
        return self


class KafkaConfig(Section):
    """The broker and the topics."""

    bootstrap_servers: Annotated[str | None, RESUME] = None
    """host:port, comma separated; null: KAFKA_BOOTSTRAP_SERVERS, or else the local broker, which is started."""
    partitions: Annotated[int, Field(ge=1, le=256)] = 1
    """Partitions of a version topic; slot s goes to partition s % partitions."""
    request_partitions: Annotated[int, Field(ge=1, le=4096)] = 8
    """Partitions of the requests topic; each producer reads one."""
    replication_factor: Annotated[int, Field(ge=1)] = 1
    """Copies of each partition."""
    min_insync_replicas: Annotated[int, Field(ge=1)] = 1
    """Copies that must have a record before it counts as written; at least 2 when there are several copies."""
    compression: Literal["none", "lz4", "zstd", "gzip", "snappy"] = "lz4"
    """Compression of what producers and learner write."""
    max_record_mib: Annotated[int, Field(ge=1, le=90)] = 64
    """Largest record, before compression. The broker's request limit of 100 MiB bounds it."""
    timeout_s: Annotated[float, Field(gt=0), RESUME] = 60.0
    """A call to the broker that takes longer has failed."""
    outage_timeout_s: Annotated[float, Field(gt=0), RESUME] = 600.0
    """The learner waits this long for a broker that is away; then it ends, and the run can be resumed."""
    security: Annotated[SecurityConfig, RESUME] = Field(default_factory=SecurityConfig)

    @model_validator(mode="after")
    def _durable(self) -> KafkaConfig:
        if self.replication_factor > 1 and self.min_insync_replicas < 2:
            raise ValueError("replication_factor > 1 with min_insync_replicas 1 can lose acknowledged records; use 2")
        if self.min_insync_replicas > self.replication_factor:
            raise ValueError("min_insync_replicas cannot exceed replication_factor")
        return self
