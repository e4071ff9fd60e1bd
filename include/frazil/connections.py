"""Connections, folders, limits from the environment, and the settings of clients.

A connection is an Airflow connection: `AIRFLOW_CONN_<ID>` in the environment as JSON, or, inside
Airflow, the connection of that id. With the embedded stack, `stack.json` (written by
`frazil stack up`) defines the default connections that the environment leaves out. Secrets are
only held in memory.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlparse, urlunparse

from frazil.catalog_settings import complete_properties, read_type, to_spark_catalog
from frazil.errors import ConfigurationError, ConnectionMissingError

POOLS_VARIABLE = "FRAZIL_TABLE_POOLS"
DEFAULT_POOL = "default_pool"
CATALOG_NAME_KEY = "catalog"
_CATALOG_NAME = re.compile(r"(?=.*[A-Za-z_])[A-Za-z0-9_]+")

_SECRET_WORDS = (
    *("password", "passphrase", "secret", "token", "credential", "access-key", "jaas"),
    *("authorization", "api-key", "apikey", "cookie"),
)

_HEADER_PREFIX = "header."
"""Prefix of headers that a REST catalog receives with each request; any of them may be a secret."""

_LIBRARY = Path(__file__).parents[1]
_IN_WHEEL = Path(__file__).with_name("shipped")
"""A wheel contains `dags`, `spark_jobs`, `include/stack` and `include/streams` of the checkout."""

FORK_SOCKET = "clients.sock"

_SOCKET_PATH_LIMIT = 90
"""The system allows 107 bytes (103 on macOS); servers first bind a longer, temporary name."""


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


@dataclass(frozen=True)
class CatalogPreset:
    """The settings of one catalog, for PyIceberg (`properties`) and for Spark.

    Spark's are translated from PyIceberg's, unless the connection has some for one of them alone.
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    spark_properties: Mapping[str, str] | None = field(default=None, repr=False, compare=False)

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings for this catalog, with its secrets.

        They reach Spark by a file that only this user can read, or by the connection to the Connect
        server; Spark redacts them by `spark.redaction.regex`.
        """
        prefix = f"spark.sql.catalog.{self.name}"
        own = self.spark_properties
        if own is None:
            own = to_spark_catalog(self.name, self.properties)
        common = {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.cache-enabled": "false",
        }
        return common | {f"{prefix}.{key}": value for key, value in own.items()}


def is_secret(key: str, value: str) -> bool:
    """Return whether a setting is secret and must not leave this process."""
    lowered = key.lower().replace("_", "-")
    if lowered.startswith(_HEADER_PREFIX) or any(word in lowered for word in _SECRET_WORDS):
        return True
    return bool(urlparse(value).password)


def shipped_path(name: str) -> Path:
    """Return a folder by its path in the checkout, such as `spark_jobs` or `include/stack`."""
    return _IN_WHEEL / Path(name).name if is_wheel() else _LIBRARY.parent / name


def is_wheel() -> bool:
    """Return whether this is an installed wheel and not a checkout."""
    return _IN_WHEEL.is_dir()


def python_path() -> str:
    """Return the PYTHONPATH with which another interpreter imports Frazil's modules."""
    return f"{_LIBRARY}:{shipped_path('spark_jobs')}"


def home_dir() -> Path:
    """Return the folder of all local state (`FRAZIL_HOME`, default `.frazil`)."""
    return Path(os.environ.get("FRAZIL_HOME", ".frazil")).absolute()


def fork_server_address() -> Path | None:
    """Return the socket of the fork server for Spark clients; None if it is switched off.

    `FRAZIL_FORK_SERVER` names another socket; an empty value switches the fork server off.
    """
    configured = os.environ.get("FRAZIL_FORK_SERVER")
    if configured is None:
        return choose_socket_path(home_dir() / "stack", FORK_SOCKET)
    return Path(configured) if configured else None


def choose_socket_path(folder: Path, name: str) -> Path:
    """Return a socket's path in `folder`, or in the temp folder if that path is too long."""
    path = folder / name
    if len(str(path)) <= _SOCKET_PATH_LIMIT:
        return path
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"frazil-{os.getuid()}-{digest}-{name}"


def streams_dir() -> Path:
    """Return the folder of stream files (`FRAZIL_STREAMS`).

    The default is `include/streams` of the checkout; with a wheel, `frazil_streams` in the working
    directory.
    """
    default = Path("frazil_streams") if is_wheel() else shipped_path("include/streams")
    return Path(os.environ.get("FRAZIL_STREAMS", default)).absolute()


def is_in_environment(connection_id: str) -> bool:
    """Return whether the environment defines a connection."""
    return f"AIRFLOW_CONN_{connection_id.upper()}" in os.environ


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
    """
    for resolver in _resolvers:
        connection = resolver(connection_id)
        if connection is not None:
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
    except (ValueError, AttributeError) as error:
        raise ConnectionMissingError(
            f"AIRFLOW_CONN_{connection_id.upper()} is not a connection in Airflow's JSON format",
            'write it as {"conn_type": "kafka", "extra": {"bootstrap.servers": "host:9092"}}',
        ) from error
    texts = {
        name: str(content[name])  # YAML and shells write a password of digits as a number
        for name in ("host", "login", "password", "conn_type", "schema")
        if content.get(name) is not None
    }
    return Connection(
        id=connection_id,
        port=content.get("port"),
        extra=read_extra(connection_id, dict(given)),
        **texts,
    )


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
    """Read a default connection from the embedded stack's `stack.json`."""
    path = home_dir() / "stack" / "stack.json"
    if not path.is_file():
        return None
    stack = json.loads(path.read_text())
    match connection_id:
        case "kafka_default":
            return Connection(
                connection_id, extra={"bootstrap.servers": stack["kafka"]["bootstrap"]}
            )
        case "iceberg_default":
            catalog = stack["catalog"]
            extra = {CATALOG_NAME_KEY: catalog["name"], **catalog["properties"]}
            return Connection(connection_id, extra=extra)
        case "spark_connect_default":
            return Connection(connection_id, host=stack["spark_connect"]["url"])
        case "schema_registry_default" if "schema_registry" in stack:
            return Connection(connection_id, host=stack["schema_registry"]["url"])
    return None


def find_catalog(connection_id: str) -> CatalogPreset:
    """Return the catalog settings of a connection.

    Raises:
        ConnectionMissingError: the connection or its address is missing.
        ConfigurationError: Spark SQL cannot name the catalog, or Spark would not get a setting.
    """
    connection = find_connection(connection_id)
    given = dict(connection.extra)
    name = given.pop(CATALOG_NAME_KEY, "lake")
    if connection.host and "uri" not in given:
        given["uri"] = connection.host
    _add_catalog_login(given, connection)
    properties = complete_properties(given)
    if "uri" not in properties and read_type(properties) not in _WITHOUT_ADDRESS:
        raise ConnectionMissingError(
            f"connection {connection_id!r} has no `uri` in its extra",
            "add `uri`, `type` and `warehouse` to the extra, as for pyiceberg.catalog.load_catalog",
        )
    if not _CATALOG_NAME.fullmatch(str(name)):
        raise ConfigurationError(
            f"connection {connection_id!r}: catalog name {name!r} is not an identifier of Spark "
            "SQL: a table would be created, and then no batch could be written to it",
            f"set `{CATALOG_NAME_KEY}` in the extra to a name of letters, digits and _, such as "
            "`lake`; with `type: sql` the name is stored with each table, so rename it there too",
        )
    return CatalogPreset(name, properties, to_spark_catalog(connection_id, given))


_WITHOUT_ADDRESS = frozenset({"glue"})


def _add_catalog_login(given: dict[str, str], connection: Connection) -> None:
    """Add login and password: of a database to its address, of a REST catalog as `credential`."""
    if not connection.login:
        if connection.password:
            raise ConfigurationError(
                f"connection {connection.id!r} has a password without a login",
                "set its login; the token of a REST catalog is `token` in the extra",
            )
        return
    parsed, password = urlparse(given.get("uri", "")), connection.password or ""
    kind, credential = read_type(given), f"{connection.login}:{password}"
    if kind == "rest" and given.setdefault("credential", credential) == credential:
        return
    if kind == "sql" and parsed.hostname and not parsed.username:
        user = f"{quote(connection.login, safe='')}:{quote(password, safe='')}"
        given["uri"] = urlunparse(parsed._replace(netloc=f"{user}@{parsed.netloc}"))
        return
    raise ConfigurationError(
        f"connection {connection.id!r}: its login would have no effect: a catalog of type {kind} "
        "has no such user, or its extra names another one",
        "remove the login, or the user in the extra",
    )


def find_kafka_config(connection_id: str) -> dict[str, str]:
    """Return the settings of a cluster in librdkafka's names.

    `frazil.kafka.client_settings` translates them for each client. The address is
    `bootstrap.servers` in the extra, or host and port. Login and password are those of SASL; with
    OIDC they are the client's id and secret.

    Raises:
        ConnectionMissingError: the connection or its bootstrap servers are missing.
        ConfigurationError: host or login would be ignored.
    """
    connection = find_connection(connection_id)
    config = dict(connection.extra)
    if connection.host:
        host = f"{connection.host}:{connection.port}" if connection.port else connection.host
        if config.setdefault("bootstrap.servers", host) != host:
            raise ConfigurationError(
                f"connection {connection_id!r}: its host {host} and `bootstrap.servers` "
                f"{config['bootstrap.servers']} differ",
                "remove one of them",
            )
    if "bootstrap.servers" not in config:
        raise ConnectionMissingError(
            f"connection {connection_id!r} has no `bootstrap.servers` in its extra",
            'set the extra to {"bootstrap.servers": "host:9092"}',
        )
    _add_login(config, connection)
    return config


def _add_login(config: dict[str, str], connection: Connection) -> None:
    """Add login and password as the user of SASL, or as the client of OIDC."""
    if not connection.login:
        if connection.password:
            raise ConfigurationError(
                f"connection {connection.id!r} has a password without a login",
                "set its login; the password of a private key is `ssl.key.password` in the extra",
            )
        return
    is_oidc = config.get("sasl.oauthbearer.method", "").lower() == "oidc"
    names = _OIDC_LOGIN if is_oidc else _SASL_LOGIN
    for name, value in zip(names, (connection.login, connection.password or ""), strict=True):
        if config.setdefault(name, value) != value:
            raise ConfigurationError(
                f"connection {connection.id!r}: its login or password and `{name}` differ",
                "remove one of them",
            )


_SASL_LOGIN = ("sasl.username", "sasl.password")
_OIDC_LOGIN = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")


CONNECT_CONNECTION = "spark_connect_default"


def find_spark_remote(connection_id: str = CONNECT_CONNECTION) -> str:
    """Return the Spark Connect address, such as `sc://host:port/;use_ssl=true;token=…`.

    Login and password are the user and the token, as in Airflow's provider; `use_ssl` stands in
    the extra. PySpark uses TLS wherever there is a token, except at `localhost`.

    Raises:
        ConfigurationError: the extra has another key.
    """
    connection = find_connection(connection_id)
    host = connection.host or "127.0.0.1"
    address = host if host.startswith("sc://") else f"sc://{host}"
    if connection.port:
        plain, _, parameters = address.partition("/;")
        address = f"{plain.rstrip('/')}:{connection.port}" + (
            f"/;{parameters}" if parameters else ""
        )
    unknown = sorted(connection.extra.keys() - _OF_CONNECT)
    if unknown:
        raise ConfigurationError(
            f"connection {connection_id!r}: unknown settings: {', '.join(unknown)}",
            f"use only {', '.join(sorted(_OF_CONNECT))}; Spark's own settings belong to the server",
        )
    given = {"user_id": connection.login, "token": connection.password, **connection.extra}
    pairs = [f"{k}={quote(str(v), safe='')}" for k, v in sorted(given.items()) if v]
    if not pairs:
        return address
    return address + (";" if "/;" in address else "/;") + ";".join(pairs)


_OF_CONNECT = frozenset({"use_ssl", "token", "user_id", "user_agent"})


def find_registry_config(connection_id: str) -> dict[str, str]:
    """Return the settings of confluent-kafka's registry client.

    The address is the connection's host (with port, if it has one) or `url` in its extra. Login
    and password become basic authentication, `token` in the extra becomes a bearer token. Every
    other key of the extra is passed on to the client, for example `ssl.ca.location` or `proxy`.

    Raises:
        ConnectionMissingError: the connection or its address is missing.
    """
    connection = find_connection(connection_id)
    config = dict(connection.extra)
    if "url" not in config:
        if not connection.host:
            raise ConnectionMissingError(
                f"connection {connection_id!r} has no host",
                "set its host to the registry's address, for example "
                "https://registry.example.org:8081",
            )
        host = connection.host if "://" in connection.host else f"http://{connection.host}"
        config["url"] = f"{host}:{connection.port}" if connection.port else host
    if connection.login:
        config["basic.auth.user.info"] = f"{connection.login}:{connection.password or ''}"
    token = config.pop("token", None)
    if token is not None:
        config["bearer.auth.credentials.source"] = "STATIC_TOKEN"
        config["bearer.auth.token"] = token
        config.setdefault("bearer.auth.logical.cluster", "")
    return config


def read_limit(variable: str, default: int) -> int:
    """Read a number of records from the environment.

    Raises:
        ConfigurationError: the value is not a number.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ConfigurationError(
            f"{variable} is {text!r}, not a number of records",
            f"set it to a number such as {default}, or unset it",
        )
    return int(text)


def choose_pool(table: str) -> str:
    """Return the Airflow pool of the tasks that write to a table.

    Where `FRAZIL_TABLE_POOLS` is `true` it is `frazil_<namespace>_<table>`, which the site creates;
    `frazil doctor` names those that are missing.
    """
    if os.environ.get(POOLS_VARIABLE, "").lower() != "true":
        return DEFAULT_POOL
    return f"frazil_{table.replace('.', '_')}"
