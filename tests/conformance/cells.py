"""The cells: each is one way to reach Kafka, a catalog with its storage, and Spark."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.ivy_jars import ensure_jars

from conformance.gateway import CLIENT_ID, CLIENT_SECRET, SCOPE
from conformance.servers import (
    AMAZON,
    DATABASE_PASSWORD,
    DATABASE_USER,
    IVY_FILE,
    REGION,
    S3_KEY,
    S3_SECRET,
    SPARK_TOKEN,
    Servers,
)

Json = dict[str, object]


@dataclass(frozen=True)
class Setup:
    """What a cell's user writes down, and where the files of the warehouse are."""

    connections: Mapping[str, Json]
    data: Path | None
    engine: str = "connect"
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of the table: Kafka, catalog and storage, Spark, Airflow."""

    name: str
    kafka: str = "PLAINTEXT"
    catalog: str = "sqlite"
    storage: str = "local"
    spark: str = "connect"
    executor: str = ""
    """Of the Airflow whose DAGs do all; without one the commands of a user do."""
    has_alert: bool = False
    """Let Airflow mail an alert at the end."""

    def prepare(self, servers: Servers, folder: Path) -> Setup:
        """Start the servers that the cell needs; return its connections."""
        connections = {
            "kafka_default": write_kafka(servers, self.kafka),
            "iceberg_default": CATALOGS[self.catalog](servers, folder, self.storage),
        }
        spark, environment = SPARKS[self.spark](servers)
        engine = "submit" if self.spark == "submit" else "connect"
        data = servers.s3.data if self.storage == "s3" else folder
        return Setup({**connections, **spark}, data, engine, environment)


def write_kafka(servers: Servers, way: str) -> Json:
    """Write the connection as a user does: login and password in their fields."""
    mechanism = {"SCRAM-512": "SCRAM-SHA-512"}.get(way)
    extra = servers.broker.connection("SCRAM-256" if mechanism else way)
    if mechanism:
        extra["sasl.mechanism"] = mechanism
    login = extra.pop("sasl.username", None) or extra.pop("sasl.oauthbearer.client.id", None)
    password = extra.pop("sasl.password", None) or extra.pop("sasl.oauthbearer.client.secret", None)
    return {"conn_type": "kafka", "login": login, "password": password, "extra": extra}


def _warehouse(servers: Servers, folder: Path, storage: str) -> dict[str, str]:
    if storage == "local":
        return {"warehouse": f"file://{folder}/warehouse"}
    bucket = folder.name.replace("_", "-")
    servers.s3.create_bucket(bucket)
    return {"warehouse": f"s3://{bucket}/lake", **servers.s3.settings}


def write_sqlite(servers: Servers, folder: Path, storage: str) -> Json:
    uri = f"sqlite:////{str(folder / 'catalog.db').lstrip('/')}"
    return {"extra": {"type": "sql", "uri": uri, **_warehouse(servers, folder, storage)}}


def write_postgres(servers: Servers, folder: Path, storage: str) -> Json:
    return {
        "login": DATABASE_USER,
        "password": DATABASE_PASSWORD,
        "extra": {
            "type": "sql",
            "uri": servers.database.uri("postgres"),
            "catalog": folder.name,  # all cells share the database
            **_warehouse(servers, folder, storage),
        },
    }


def write_rest(servers: Servers, folder: Path, storage: str) -> Json:
    given = _warehouse(servers, folder, storage)
    uri = servers.rest(folder / "rest", serve(given))
    return {"extra": {"type": "rest", "uri": uri, **given}}


def serve(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the REST server for a warehouse."""
    settings = {"CATALOG_WAREHOUSE": given["warehouse"]}
    if "s3.endpoint" in given:
        settings |= {
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": given["s3.endpoint"],
            "CATALOG_S3_ACCESS__KEY__ID": S3_KEY,
            "CATALOG_S3_SECRET__ACCESS__KEY": S3_SECRET,
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
            "CATALOG_CLIENT_REGION": REGION,
        }
    return settings


def write_oauth(servers: Servers, folder: Path, storage: str) -> Json:
    """Write a catalog that knows its clients, and gives them credentials for each table in S3."""
    given = _warehouse(servers, folder, storage)
    vending = {"CATALOG_INCLUDE__CREDENTIALS": "true"}
    uri = servers.guard(servers.rest(folder / "rest", serve(given) | vending))
    own = {k: v for k, v in given.items() if k not in {"s3.access-key-id", "s3.secret-access-key"}}
    extra = {"type": "rest", "uri": uri, "scope": SCOPE, "oauth2-server-uri": f"{uri}/token", **own}
    return {"login": CLIENT_ID, "password": CLIENT_SECRET, "extra": extra}


def write_hive(servers: Servers, folder: Path, storage: str) -> Json:
    given = _warehouse(servers, folder, storage)
    uri = servers.metastore(folder / "hive", given["warehouse"])
    return {"extra": {"type": "hive", "uri": uri, **given}}


def write_glue(servers: Servers, folder: Path, storage: str) -> Json:
    """Write a Glue that moto imitates; its keys are in the environment of both clients."""
    given = _warehouse(servers, folder, storage)
    settings = {"type": "glue", "glue.endpoint": servers.moto, "client.region": REGION}
    return {"extra": {**settings, **given}}


def write_connect(servers: Servers) -> tuple[dict[str, Json], dict[str, str]]:
    return {"spark_connect_default": {"host": servers.spark.remote}}, {}


def write_amazon(servers: Servers) -> tuple[dict[str, Json], dict[str, str]]:
    return {"spark_connect_default": {"host": servers.amazon_spark.remote}}, dict(AMAZON)


def write_guarded(servers: Servers) -> tuple[dict[str, Json], dict[str, str]]:
    """Write a server's token in the password field; gRPC has its authorities from its variable."""
    port, authority = servers.guarded_spark
    connection: Json = {
        "conn_type": "spark_connect",
        "host": "127.0.0.1",
        "port": port,
        "login": "frazil",
        "password": SPARK_TOKEN,
        "extra": {"use_ssl": True},
    }
    roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority)}
    return {"spark_connect_default": connection}, roots


def write_submit(_servers: Servers) -> tuple[dict[str, Json], dict[str, str]]:
    clouds = f"{ensure_jars(IVY_FILE, 'clouds')}/*"
    extra = {"spark.driver.memory": "768m", "spark.driver.extraClassPath": clouds}
    return {"spark_default": {"host": "local[1]", "extra": extra}}, {}


SPARKS: Mapping[str, Callable[[Servers], tuple[dict[str, Json], dict[str, str]]]] = {
    "connect": write_connect,
    "connect, keys": write_amazon,
    "token, TLS": write_guarded,
    "submit": write_submit,
}
CATALOGS: Mapping[str, Callable[[Servers, Path, str], Json]] = {
    "sqlite": write_sqlite,
    "postgres": write_postgres,
    "rest": write_rest,
    "oauth2": write_oauth,
    "hive": write_hive,
    "glue": write_glue,
}
CELLS = (
    Cell("plaintext", has_alert=True),
    Cell("sasl_plain", kafka="PLAIN"),
    Cell("scram_256", kafka="SCRAM-256"),
    Cell("scram_512", kafka="SCRAM-512"),
    Cell("sasl_ssl", kafka="SCRAM-512 by TLS"),
    Cell("mtls", kafka="mTLS, encrypted PEM key"),
    Cell("oidc", kafka="OIDC"),
    Cell("unsecured_tokens", kafka="OAUTHBEARER, unsecured"),
    Cell("sqlite_s3", storage="s3"),
    Cell("postgres_local", catalog="postgres"),
    Cell("postgres_s3", catalog="postgres", storage="s3"),
    Cell("rest_local", catalog="rest"),
    Cell("rest_s3", catalog="rest", storage="s3"),
    Cell("oauth2_local", catalog="oauth2"),
    Cell("oauth2_s3", catalog="oauth2", storage="s3"),
    Cell("hive_local", catalog="hive"),
    Cell("glue_s3", catalog="glue", storage="s3", spark="connect, keys"),
    Cell("connect_token", spark="token, TLS"),
    Cell("submit", spark="submit"),
    Cell("local_connect", executor="LocalExecutor"),
    Cell("local_token", spark="token, TLS", executor="LocalExecutor"),
    Cell("local_submit", spark="submit", executor="LocalExecutor"),
    Cell("celery_connect", executor="CeleryExecutor"),
    Cell("celery_token", spark="token, TLS", executor="CeleryExecutor"),
    Cell("celery_submit", spark="submit", executor="CeleryExecutor"),
)


BYSTANDERS: Mapping[str, Json] = {
    "schema_registry_default": {
        "conn_type": "http",
        "host": "http://127.0.0.1:9",
        "login": "me",
        "password": "planted-registry-password",
    },
}
"""Connections that a site has beside those of the stream."""


def encode(connections: Mapping[str, Json]) -> dict[str, str]:
    """Write connections as environment variables, as Airflow reads them."""
    return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(c) for name, c in connections.items()}
