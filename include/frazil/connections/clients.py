"""The settings of each client: catalog, Kafka, Spark Connect, schema registry."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlparse, urlunparse

from frazil.connections.catalog_settings import complete_properties, read_type, to_spark_catalog
from frazil.connections.lookup import CATALOG_NAME_KEY, Connection, find_connection
from frazil.errors import ConfigurationError, ConnectionMissingError

_CATALOG_NAME = re.compile(r"(?=.*[A-Za-z_])[A-Za-z0-9_]+")


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
