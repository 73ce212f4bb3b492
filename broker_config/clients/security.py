"""How a client authenticates: librdkafka settings from `kafka.security`. The only place where a secret is read.

In a config, secrets appear only as `env:NAME` or `file:PATH`; what is read is handed to librdkafka and kept nowhere else.
"""

from __future__ import annotations

import os
from pathlib import Path

from schemas.config.kafka import SecurityConfig
from schemas.errors import ConfigError, Problem


def resolve_secret(reference: str, key: str) -> str:
    """The secret that `env:NAME` or `file:PATH` refers to.

    Raises:
        ConfigError: the variable is unset, the file is unreadable, the secret is empty, or `reference` is no reference.
    """
    kind, _, where = reference.partition(":")
    if kind == "env" and where:
        secret = os.environ.get(where, "")
        if not secret:
            raise ConfigError([Problem(key, reference, "the variable is not set", f"export {where} before starting")])
        return secret
    if kind == "file" and where:
        try:
            secret = Path(where).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = f"the file cannot be read ({error})"
            raise ConfigError([Problem(key, reference, why, "give a readable file that holds only the secret")]) from None
        if not secret:
            raise ConfigError([Problem(key, reference, "the file is empty", "write the secret into it")])
        return secret
    raise ConfigError([Problem(key, None, "not a reference to a secret", "write env:NAME or file:PATH")])


def security_settings(security: SecurityConfig) -> dict[str, str]:
    """librdkafka settings of `kafka.security`.

    Raises:
        ConfigError: something that the protocol needs is missing or unreadable; all problems at once.
    """
    if security.protocol == "PLAINTEXT":
        return {}
    problems: list[Problem] = []
    settings: dict[str, str] = {"security.protocol": security.protocol}
    if security.protocol.startswith("SASL"):
        needed = {"sasl_mechanism": security.sasl_mechanism, "username": security.username, "password": security.password}
        for name, value in needed.items():
            if value is None:
                why = f"{security.protocol} needs it"
                problems.append(Problem(f"kafka.security.{name}", None, why, "set it, or use another protocol"))
        settings["sasl.mechanism"] = security.sasl_mechanism or ""
        settings["sasl.username"] = security.username or ""
        if security.password is not None:
            try:
                settings["sasl.password"] = resolve_secret(security.password.get_secret_value(), "kafka.security.password")
            except ConfigError as error:
                problems.extend(error.problems)
    if security.protocol.endswith("SSL") and security.ca_location is not None:
        if not Path(security.ca_location).is_file():
            problems.append(Problem("kafka.security.ca_location", security.ca_location, "no such file", "give the CA's PEM file"))
        settings["ssl.ca.location"] = security.ca_location
    if problems:
        raise ConfigError(problems)
    return settings
