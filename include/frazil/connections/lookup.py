"""Connections by their id, from the environment or from Airflow.

A connection is an Airflow connection: `AIRFLOW_CONN_<ID>` in the environment as JSON, or, inside
Airflow, the connection of that id. With the embedded stack, `stack.json` (written by
`frazil stack up`) defines the default connections that the environment leaves out. Secrets are
only held in memory.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from frazil.environment import home_dir
from frazil.errors import ConfigurationError, ConnectionMissingError

CATALOG_NAME_KEY = "catalog"

_SECRET_WORDS = (
    *("password", "passphrase", "secret", "token", "credential", "access-key", "jaas"),
    *("authorization", "api-key", "apikey", "cookie"),
)

_HEADER_PREFIX = "header."
"""Prefix of headers that a REST catalog receives with each request; any of them may be a secret."""


_PASSWORD_IN_URL = re.compile(r"://[^/@\s:]{0,500}:(?![0-9]+[/?#])[^@\s]{1,500}@")
"""A user and a password before the host; not a port before a path with an @."""


_PASSWORD_BEFORE_HOST = re.compile(r"[^@:]{1,500}:(?!//)(?![0-9]+[/?#])[^@]{1,500}@")
"""The same in an address without a scheme, `user:password@host`."""

_IN_HEADERS = ("token", "credential", "authorization", "api-key", "apikey", "cookie")
"""Words of secrets that a client sends in a header, where no blank can be at the ends."""

_OF_LINES = "jaas"
"""A secret of Java's that may have several lines."""


@dataclass(frozen=True)
class Connection:
    """One Airflow connection; the repr leaves out `password` and `extra`, which may be secret."""

    id: str
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    conn_type: str | None = None
    schema: str | None = None

    def to_json(self) -> str:
        """Return the connection, with its secrets, in Airflow's JSON format."""
        fields = {name: value for name, value in vars(self).items() if name != "id"}
        return json.dumps({**fields, "extra": dict(self.extra)})


def is_secret(key: str, value: str) -> bool:
    """Return whether a setting is secret and must not leave this process."""
    lowered = key.lower().replace("_", "-")
    if lowered.startswith(_HEADER_PREFIX) or any(word in lowered for word in _SECRET_WORDS):
        return True
    return has_password(value)


def has_password(address: str) -> bool:
    """Return whether an address has a password before its host."""
    return bool(_PASSWORD_IN_URL.search(address))


def has_bare_password(address: str) -> bool:
    """Return whether an address, with or without a scheme, has a password before its host."""
    return has_password(address) or bool(_PASSWORD_BEFORE_HOST.match(address))


def require_clean_secrets(connection: Connection) -> None:
    """Refuse secrets with a line break, and those of a header with blanks at their ends.

    Clients refuse them too, by errors that show the value. They are not corrected: whoever reads
    the same secret elsewhere would get another value.

    Raises:
        ConfigurationError: it names the key, never the value.
    """
    given = {"login": connection.login or "", "password": connection.password or ""}
    for key, value in (given | dict(connection.extra)).items():
        lowered = key.lower().replace("_", "-")
        if key != "login" and (not is_secret(key, "") or _OF_LINES in lowered):
            continue
        in_header = lowered.startswith(_HEADER_PREFIX) or any(w in lowered for w in _IN_HEADERS)
        has_break = "\n" in value or "\r" in value
        if has_break or (in_header and value != value.strip()):
            what = "a line break" if has_break else "a blank at one of its ends"
            raise ConfigurationError(
                f"connection {connection.id!r}: its `{key}` has {what}",
                "remove it; a secret that is mounted as a file often ends with a line break",
            )


def is_in_environment(connection_id: str) -> bool:
    """Return whether the environment defines a connection."""
    return f"AIRFLOW_CONN_{connection_id.upper()}" in os.environ


def is_given(connection_id: str) -> bool:
    """Return whether the environment or Airflow defines a connection.

    Only the environment counts for a connection that the embedded stack also defines.
    """
    if is_in_environment(connection_id) or _stack_connection(connection_id):
        return is_in_environment(connection_id)
    return any(ask(connection_id) for ask in _resolvers[1:])


def connection_from_environment(connection_id: str) -> Connection | None:
    """Read a connection from `AIRFLOW_CONN_<ID>`, or from `stack.json` of the embedded stack."""
    text = os.environ.get(f"AIRFLOW_CONN_{connection_id.upper()}")
    if text is not None:
        return _parse_connection(connection_id, text)
    return _stack_connection(connection_id)


_resolvers: list[Callable[[str], Connection | None]] = [connection_from_environment]


def add_resolver(resolver: Callable[[str], Connection | None]) -> None:
    """Add a source of connections that is asked after the environment, for example Airflow."""
    if resolver not in _resolvers:
        _resolvers.append(resolver)


def find_connection(connection_id: str) -> Connection:
    """Find a connection by its id.

    Raises:
        ConnectionMissingError: the connection is not defined.
        ConfigurationError: a secret has a line break, or a blank at one of its ends.
    """
    for resolver in _resolvers:
        connection = resolver(connection_id)
        if connection is not None:
            require_clean_secrets(connection)
            return connection
    raise ConnectionMissingError(
        f"connection {connection_id!r} is not defined: neither AIRFLOW_CONN_"
        f"{connection_id.upper()} nor {home_dir() / 'stack' / 'stack.json'} nor Airflow has it",
        "define the connection in Airflow, or run `frazil stack up` to start the embedded stack",
    )


def _parse_connection(connection_id: str, text: str) -> Connection:
    """Parse a connection in Airflow's JSON format."""
    try:
        content = json.loads(text)
        extra = content.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
        given = extra.items()
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConnectionMissingError(
            f"AIRFLOW_CONN_{connection_id.upper()} is not a connection in Airflow's JSON format",
            'write it as {"conn_type": "kafka", "extra": {"bootstrap.servers": "host:9092"}}',
        ) from error
    unknown = sorted(content.keys() - _FIELDS - _IGNORED_FIELDS)
    if unknown:
        raise ConfigurationError(
            f"connection {connection_id!r}: unknown fields: {', '.join(unknown)}",
            f"use {', '.join(sorted(_FIELDS))}; settings of a client belong in `extra`",
        )
    return read_fields(connection_id, content, read_extra(connection_id, dict(given)))


def read_fields(
    connection_id: str, content: Mapping[str, object], extra: Mapping[str, str]
) -> Connection:
    """Return a connection from the fields that Airflow's JSON has beside the extra.

    Raises:
        ConfigurationError: the port is no number.
    """
    texts = {
        name: str(content[name])  # YAML and shells write a password of digits as a number
        for name in ("host", "login", "password", "conn_type", "schema")
        if content.get(name) is not None
    }
    port = _read_port(connection_id, content.get("port"))
    return Connection(id=connection_id, port=port, extra=extra, **texts)


_FIELDS = frozenset(
    {"conn_type", "description", "host", "login", "password", "schema", "port", "extra"}
)
_IGNORED_FIELDS = frozenset({"conn_id", "team_name"})
"""Fields of Airflow that no client needs."""


def _read_port(connection_id: str, port: object) -> int | None:
    """Return a port; it may be a text of digits.

    Raises:
        ConfigurationError: it is no number.
    """
    if port in (None, ""):
        return None
    if isinstance(port, bool) or not re.fullmatch(r"[0-9]{1,5}", str(port)):
        raise ConfigurationError(
            f"connection {connection_id!r}: its port is not a port number",
            "write it as a number such as 9092",
        )
    return int(str(port))


def parse_extra(connection_id: str, extra: str | None) -> dict[str, str]:
    """Return the extra of one of Airflow's connections as texts.

    Airflow itself treats an extra that is not JSON as empty: a client would then connect to a
    broker with TLS without it.

    Raises:
        ConfigurationError: it is no JSON object, or has a list or an object.
    """
    try:
        found = json.loads(extra) if extra and extra.strip() else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"connection {connection_id!r}: its extra is not a JSON object",
            'write it with double quotes, such as {"security.protocol": "SASL_SSL"}',
        )
    return read_extra(connection_id, found)


def read_extra(connection_id: str, extra: Mapping[str, object]) -> dict[str, str]:
    """Return a connection's extra as texts: `true`, `30`; a null is left out.

    Raises:
        ConfigurationError: a value is a list or an object; the error names its key.
    """
    texts = {}
    for key, value in extra.items():
        if not isinstance(value, str | int | float | None):  # a boolean is an int
            kind = "an object" if isinstance(value, Mapping) else "a list"
            raise ConfigurationError(
                f"connection {connection_id!r}: {key!r} of its extra is {kind}, not a text, number "
                "or boolean",
                "write settings as flat keys, for example "
                '{"ssl.ca.location": "/etc/ssl/ca.pem", "max.retries": 3}',
            )
        if value is not None:
            texts[str(key)] = value if isinstance(value, str) else json.dumps(value)
    return texts


def _stack_connection(connection_id: str) -> Connection | None:
    """Read a default connection from the embedded stack's `stack.json`.

    Raises:
        ConfigurationError: the file does not define it, because it was truncated or edited.
    """
    path = home_dir() / "stack" / "stack.json"
    if connection_id not in _OF_STACK or not path.is_file():
        return None
    try:
        return _read_stack_connection(connection_id, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} does not define connection {connection_id!r}: the file is damaged",
            "run `frazil stack up`, which writes it again, or define the connection in Airflow",
        ) from error


_OF_STACK = frozenset(
    {"kafka_default", "iceberg_default", "spark_connect_default", "schema_registry_default"}
)


def _read_stack_connection(
    connection_id: str, stack: Mapping[str, Mapping[str, object]]
) -> Connection | None:
    if not stack:
        message = "it is empty"
        raise ValueError(message)
    match connection_id:
        case "kafka_default":
            extra = {"bootstrap.servers": _require_text(stack["kafka"]["bootstrap"])}
            return Connection(connection_id, extra=extra)
        case "iceberg_default":
            catalog = stack["catalog"]
            properties = cast("Mapping[str, object]", catalog["properties"])
            given = {CATALOG_NAME_KEY: _require_text(catalog["name"]), **properties}
            return Connection(connection_id, extra=read_extra(connection_id, given))
        case "spark_connect_default":
            return Connection(connection_id, host=_require_text(stack["spark_connect"]["url"]))
    if "schema_registry" not in stack:
        return None
    return Connection(connection_id, host=_require_text(stack["schema_registry"]["url"]))


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        message = f"{value!r} is not a text"
        raise TypeError(message)
    return value
