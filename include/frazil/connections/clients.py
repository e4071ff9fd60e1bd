"""The settings of each client: catalog, Kafka, Spark Connect, schema registry."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from frazil.connections.addresses import (
    add_port,
    join_address,
    join_addresses,
    validate_no_login,
    validate_unused_fields,
)
from frazil.connections.catalog_settings import (
    DATABASES,
    complete_properties,
    read_database_url,
    read_type,
    to_spark_catalog,
)
from frazil.connections.lookup import CATALOG_NAME_KEY, Connection, find_connection
from frazil.errors import ConfigurationError, ConnectionMissingError

_CATALOG_NAME = re.compile(
    r"(?!(\d+(e\d+)?(bd|[df])?|\d+[lsy])\Z)[a-z0-9_]+", re.ASCII | re.IGNORECASE
)
"""A name that Spark SQL reads without quotes: no number, such as `3`, `12L`, `1e5` or `3d`."""


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


def find_catalog(connection_id: str) -> CatalogPreset:
    """Return the catalog settings of a connection.

    Raises:
        ConnectionMissingError: the connection or its address is missing.
        ConfigurationError: Spark SQL cannot name the catalog, or Spark would not get a setting.
    """
    connection = find_connection(connection_id)
    given = dict(connection.extra)
    name = given.pop(CATALOG_NAME_KEY, "lake")
    _add_catalog_address(given, connection)
    _add_catalog_login(given, connection)
    properties = complete_properties(given)
    if "uri" not in properties and read_type(properties) in _WITH_ADDRESS:
        raise ConnectionMissingError(
            f"connection {connection_id!r} has no `uri` in its extra",
            "add `uri`, `type` and `warehouse` to the extra, as for pyiceberg.catalog.load_catalog",
        )
    if not _CATALOG_NAME.fullmatch(name) or name.lower() == _OF_SPARK:
        raise ConfigurationError(
            f"connection {connection_id!r}: catalog name {name!r} is not an identifier of Spark "
            "SQL: a table would be created, and then no batch could be written to it",
            f"set `{CATALOG_NAME_KEY}` in the extra to a name of letters, digits and _ such as "
            "`lake`; Spark reads `3d` and `1e5` as numbers, so they are not allowed. With "
            "`type: sql` the name is stored with each table, so rename it there too",
        )
    return CatalogPreset(name, properties, to_spark_catalog(connection_id, given))


_WITH_ADDRESS = frozenset({"sql", "rest", "hive"})
_OF_SPARK = "spark_catalog"
"""Spark's own catalog, in any case, which no setting of ours may replace."""
_WEB = frozenset({"http", "https"})


def _add_catalog_address(given: dict[str, str], connection: Connection) -> None:
    """Add the address that host, port and schema give; the schema is a database or a path.

    Airflow reads `https://host:8181/path?type=rest` as a connection of type `https`.

    Raises:
        ConfigurationError: there is no scheme, no host, or `uri` says something else.
    """
    if not connection.host:
        validate_unused_fields(connection, "port", "schema")
    elif "uri" in given:
        if not _names_same(given["uri"], connection):
            raise ConfigurationError(
                f"connection {connection.id!r}: its host, port and schema give another address "
                "than `uri` in its extra",
                "remove them, or `uri`",
            )
    else:
        given["uri"] = _join_catalog_address(connection, connection.host)


def _join_catalog_address(connection: Connection, host: str) -> str:
    """Return the address of a catalog from a host with or without scheme, port and path."""
    scheme, is_url, rest = host.partition("://")
    name = f"connection {connection.id!r}"
    if is_url and scheme.partition("+")[0] in DATABASES:
        url = read_database_url(name, host)
        fields = (("port", url.port, connection.port), ("schema", url.database, connection.schema))
        for field_name, found, value in fields:
            if found and value and found != value:
                raise ConfigurationError(
                    f"{name}: the address in its host and its field `{field_name}` differ",
                    "remove one of them",
                )
        url = url.set(port=connection.port or url.port)
        url = url.set(database=connection.schema or url.database)
        return url.render_as_string(hide_password=False)
    if not is_url:
        if connection.conn_type not in _WEB:
            raise ConfigurationError(
                f"{name}: its host has no scheme, so the kind of catalog is unknown",
                "write the whole address as `uri` in the extra, such as https://host:8181/catalog",
            )
        scheme, rest = connection.conn_type, host
    if scheme not in _WEB or "/" in rest.rstrip("/") or "?" in rest:
        validate_unused_fields(connection, "schema")
    address = f"{scheme}://{rest}"
    if "?" not in rest or connection.port:
        address = join_address(connection, address, connection.port)
    return f"{address.rstrip('/')}/{connection.schema}" if connection.schema else address


def _names_same(uri: str, connection: Connection) -> bool:
    """Return whether host, port and schema of a connection are those of an address, or missing."""
    given, wanted = _PARTS.fullmatch(uri), _PARTS.fullmatch(connection.host or "")
    if not given or not wanted:
        return False
    port, path = connection.port or wanted["port"], connection.schema or wanted["path"]
    is_port = port is None or str(port) == given["port"]
    return wanted["host"] == given["host"] and is_port and (path or given["path"]) == given["path"]


_PARTS = re.compile(
    r"(?:[^:/?#]+://)?(?:[^/?#]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*)(?::(?P<port>[0-9]+))?/?"
    r"(?P<path>[^?#]*?)/?(?:[?#].*)?"
)


def _add_catalog_login(given: dict[str, str], connection: Connection) -> None:
    """Add login and password: of a database to its address, of a REST catalog as `credential`."""
    if not _has_login(connection, "the token of a REST catalog is `token` in the extra"):
        return
    password = connection.password or ""
    kind, credential = read_type(given), f"{connection.login}:{password}"
    if kind == "rest" and given.setdefault("credential", credential) == credential:
        return
    name = f"connection {connection.id!r}"
    url = read_database_url(name, given.get("uri", "")) if kind == "sql" else None
    if url is not None and url.host and not url.username:
        added = url.set(username=connection.login, password=password)
        given["uri"] = added.render_as_string(hide_password=False)
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
    validate_unused_fields(connection, "schema")
    config = dict(connection.extra)
    if "bootstrap.servers" not in config and "metadata.broker.list" in config:
        config["bootstrap.servers"] = config.pop("metadata.broker.list")  # librdkafka's other name
    validate_no_login(connection, "host", connection.host or "")
    validate_no_login(connection, "bootstrap.servers", config.get("bootstrap.servers", ""))
    if connection.host:
        host = join_addresses(connection, connection.host, connection.port)
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
    # Java needs the port that librdkafka assumes.
    config["bootstrap.servers"] = ",".join(
        add_port(connection, each, _KAFKA_PORT)
        for each in config["bootstrap.servers"].split(",")
        if each.strip()
    )
    _add_login(config, connection)
    return config


_KAFKA_PORT = 9092


def _add_login(config: dict[str, str], connection: Connection) -> None:
    """Add login and password as the user of SASL, or as the client of OIDC."""
    if not _has_login(connection, "the password of a private key is `ssl.key.password`"):
        return
    is_oidc = config.get("sasl.oauthbearer.method", "").lower() == "oidc"
    names = _OIDC_LOGIN if is_oidc else _SASL_LOGIN
    for name, value in zip(names, (connection.login or "", connection.password or ""), strict=True):
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
    validate_unused_fields(connection, "schema")
    plain, _, parameters = (connection.host or "127.0.0.1").partition(";")
    validate_no_login(connection, "host", plain)
    plain = join_address(connection, plain.removeprefix("sc://").rstrip("/"), connection.port)
    address = f"sc://{plain}" + (f"/;{parameters}" if parameters else "")
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
    _add_registry_address(config, connection)
    _add_registry_login(config, connection)
    token = config.pop("token", None)
    if token is not None:
        config["bearer.auth.credentials.source"] = "STATIC_TOKEN"
        config["bearer.auth.token"] = token
        config.setdefault("bearer.auth.logical.cluster", "")
    return config


def _add_registry_address(config: dict[str, str], connection: Connection) -> None:
    """Add the address; the schema is `http` or `https`, as in connections of type HTTP."""
    if not connection.host:
        validate_unused_fields(connection, "port", "schema")
        if "url" not in config:
            raise ConnectionMissingError(
                f"connection {connection.id!r} has no host",
                "set its host to the registry's address, for example "
                "https://registry.example.org:8081",
            )
        return
    scheme = connection.schema or "http"
    if scheme not in _WEB:
        validate_unused_fields(connection, "schema")
    addresses = [
        each if "://" in each else f"{scheme}://{each}"
        for each in join_addresses(connection, connection.host, connection.port).split(",")
    ]
    if any(not each.startswith(f"{connection.schema or ''}") for each in addresses):
        validate_unused_fields(connection, "schema")
    if config.setdefault("url", ",".join(addresses)) != ",".join(addresses):
        raise ConfigurationError(
            f"connection {connection.id!r}: its host and `url` in its extra differ",
            "remove one of them",
        )


def _add_registry_login(config: dict[str, str], connection: Connection) -> None:
    """Add login and password as basic authentication."""
    if not _has_login(connection, "a bearer token is `token` in the extra"):
        return
    user = f"{connection.login}:{connection.password or ''}"
    if "token" in config or config.setdefault("basic.auth.user.info", user) != user:
        raise ConfigurationError(
            f"connection {connection.id!r}: its login, and `token` or `basic.auth.user.info` in "
            "its extra, name two users",
            "remove one of them",
        )


def _has_login(connection: Connection, otherwise: str) -> bool:
    """Return whether a connection has a login.

    Raises:
        ConfigurationError: it has a password only; `otherwise` says where other secrets belong.
    """
    if connection.password and not connection.login:
        raise ConfigurationError(
            f"connection {connection.id!r} has a password without a login",
            f"set its login; {otherwise}",
        )
    return bool(connection.login)
