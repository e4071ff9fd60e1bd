"""One connection serves PyIceberg, Spark and Kafka; its secrets stay in this process."""

import json
from pathlib import Path

import pytest

from frazil.connections.clients import (
    CatalogPreset,
    find_catalog,
    find_kafka_config,
    find_spark_remote,
)
from frazil.connections.lookup import Connection, find_connection
from frazil.errors import ConfigurationError, ConnectionMissingError
from frazil.kafka.cluster import KafkaLog


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return each test a home of its own and no connections."""
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    for name in ("KAFKA_DEFAULT", "ICEBERG_DEFAULT", "SPARK_CONNECT_DEFAULT"):
        monkeypatch.delenv(f"AIRFLOW_CONN_{name}", raising=False)
    return tmp_path


def define(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    """Define a connection as Airflow reads it from the environment."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(content))


def test_login_and_password_become_kafkas_words(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps({"bootstrap.servers": "k:9093", "sasl.mechanism": "PLAIN"})
    define(monkeypatch, "kafka_default", login="jane", password="s3cret", extra=extra)  # noqa: S106

    config = find_kafka_config("kafka_default")

    assert (config["sasl.username"], config["sasl.password"]) == ("jane", "s3cret")


def test_login_and_password_are_the_clients_of_oidc(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"bootstrap.servers": "k:9093", "sasl.oauthbearer.method": "oidc"}
    define(monkeypatch, "kafka_default", login="jane", password="s3cret", extra=extra)  # noqa: S106

    config = find_kafka_config("kafka_default")

    assert config["sasl.oauthbearer.client.id"] == "jane"
    assert config["sasl.oauthbearer.client.secret"] == "s3cret"
    assert "sasl.username" not in config


def test_brokers_may_be_named_by_host_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "kafka_default", host="k", port=9093)

    assert find_kafka_config("kafka_default") == {"bootstrap.servers": "k:9093"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"host": "other"}, "its host other and `bootstrap.servers` k:9092 differ"),
        ({"login": "me", "password": "x"}, "its login or password and `sasl.username` differ"),
        ({"password": "x"}, "has a password without a login"),
    ],
)
def test_what_a_form_says_is_never_ignored(
    monkeypatch: pytest.MonkeyPatch, content: dict[str, str], reason: str
) -> None:
    extra = {"bootstrap.servers": "k:9092", "sasl.username": "jane"}
    define(monkeypatch, "kafka_default", extra=extra, **content)

    with pytest.raises(ConfigurationError, match=reason):
        find_kafka_config("kafka_default")


def test_a_catalog_may_be_named_by_host(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"catalog": "prod", "type": "rest", "warehouse": "s3://w"}
    define(monkeypatch, "iceberg_default", host="http://c:8181", extra=extra)

    preset = find_catalog("iceberg_default")

    assert preset.name == "prod"
    assert preset.properties == {"type": "rest", "warehouse": "s3://w", "uri": "http://c:8181"}


@pytest.mark.parametrize(
    ("host", "port", "remote"),
    [
        ("sc://s:15002", None, "sc://s:15002"),
        ("s", 15003, "sc://s:15003"),
        ("sc://s", 15003, "sc://s:15003"),
    ],
)
def test_a_spark_address_may_be_written_as(
    monkeypatch: pytest.MonkeyPatch, host: str, port: int | None, remote: str
) -> None:
    define(monkeypatch, "spark_connect_default", host=host, port=port)

    assert find_spark_remote() == remote


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("elsewhere", None, "'elsewhere' is not defined"),
        ("kafka_default", {"extra": {}}, "has no `bootstrap.servers`"),
        ("iceberg_default", {"extra": {}}, "has no `uri`"),
        ("kafka_default", "text", "not a connection in Airflow's JSON format"),
    ],
    ids=["nobody defined it", "no brokers", "no address", "no JSON object"],
)
def test_a_connection_that_cannot_serve_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, content: object, reason: str
) -> None:
    if content is not None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(content))
    find = {"kafka_default": find_kafka_config, "iceberg_default": find_catalog}.get(name)

    with pytest.raises(ConnectionMissingError, match=reason):
        (find or find_connection)(name)


def test_numbers_and_booleans_of_an_extra_become_the_texts_that_clients_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"enable.ssl.certificate.verification": True, "request.timeout.ms": 30000, "x": None}
    own |= {"security.protocol": "SSL"}
    define(monkeypatch, "kafka_default", extra={"bootstrap.servers": "k:9092", **own})
    define(
        monkeypatch,
        "iceberg_default",
        extra={"uri": "http://c", "s3.force-virtual-addressing": False},
    )
    define(monkeypatch, "spark_default", extra=json.dumps({"spark.cores.max": 4}))

    kafka = find_kafka_config("kafka_default")

    assert kafka["enable.ssl.certificate.verification"] == "true"
    assert (kafka["request.timeout.ms"], "x" in kafka) == ("30000", False)
    assert KafkaLog(kafka) is not None
    assert find_catalog("iceberg_default").properties["s3.force-virtual-addressing"] == "false"
    assert find_connection("spark_default").extra == {"spark.cores.max": "4"}


def test_no_secret_shows_when_a_connection_or_preset_is_printed() -> None:
    connection = Connection("k", password="s3cret", extra={"jaas": "s3cret"})  # noqa: S106
    preset = CatalogPreset("lake", {"s3.secret-access-key": "s3cret"})

    assert "s3cret" not in f"{connection!r} {connection} {preset!r} {preset}"


def test_a_preset_configures_sparks_catalog_by_its_name() -> None:
    properties = {"type": "sql", "uri": "sqlite:////x/c.db", "warehouse": "file:///x/w"}

    assert CatalogPreset("lake", properties).spark_conf() == {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.lake.uri": "jdbc:sqlite:file:/x/c.db",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.warehouse": "file:///x/w",
    }


def test_a_setting_may_be_for_one_library_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"uri": "http://c:8181", "spark.io-impl": "my.Files", "pyiceberg.s3.new": "1"}
    define(monkeypatch, "iceberg_default", extra=extra)

    preset = find_catalog("iceberg_default")

    assert preset.properties == {"uri": "http://c:8181", "s3.new": "1"}
    assert preset.spark_conf()["spark.sql.catalog.lake.io-impl"] == "my.Files"
    assert "s3.new" not in str(preset.spark_conf())


def test_login_and_password_are_the_user_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"type": "sql", "uri": "postgresql+psycopg2://db:5432/catalog"}
    define(monkeypatch, "iceberg_default", login="me", password="p@ss/", extra=extra)  # noqa: S106

    preset = find_catalog("iceberg_default")

    assert preset.properties["uri"] == "postgresql+psycopg2://me:p%40ss%2F@db:5432/catalog"
    conf = preset.spark_conf()
    assert conf["spark.sql.catalog.lake.jdbc.user"] == "me"
    assert conf["spark.sql.catalog.lake.jdbc.password"] == "p@ss/"


def test_login_and_password_are_the_client_of_a_rest_catalog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = {"type": "rest", "uri": "https://c"}
    define(monkeypatch, "iceberg_default", login="me", password="s3cret", extra=extra)  # noqa: S106

    preset = find_catalog("iceberg_default")

    assert preset.properties["credential"] == "me:s3cret"
    assert preset.spark_conf()["spark.sql.catalog.lake.credential"] == "me:s3cret"


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"type": "glue"}, "a catalog of type glue has no such user"),
        ({"type": "sql", "uri": "postgresql://other@db/c"}, "or its extra names another one"),
        ({"uri": "http://c", "credential": "other:x"}, "or its extra names another one"),
    ],
)
def test_a_login_that_a_catalog_would_ignore_is_refused(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], reason: str
) -> None:
    define(monkeypatch, "iceberg_default", login="me", password="x", extra=extra)  # noqa: S106

    with pytest.raises(ConfigurationError, match=reason):
        find_catalog("iceberg_default")


@pytest.mark.parametrize("extra", [{"type": "glue"}, {"type": "s3tables", "warehouse": "ARN"}])
def test_amazons_catalogs_need_no_address(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, str]
) -> None:
    arn = "arn:aws:s3tables:eu-west-1:111122223333:bucket/lake"
    define(
        monkeypatch, "iceberg_default", extra={k: v.replace("ARN", arn) for k, v in extra.items()}
    )

    assert find_catalog("iceberg_default").name == "lake"


@pytest.mark.parametrize(
    ("content", "remote"),
    [
        ({"password": "t;k"}, "sc://s:15002/;token=t%3Bk"),
        ({"login": "me", "extra": {"use_ssl": True}}, "sc://s:15002/;use_ssl=true;user_id=me"),
        ({"host": "sc://s:15002/;use_ssl=true", "port": None, "password": "t"},
         "sc://s:15002/;use_ssl=true;token=t"),
    ],
)  # fmt: skip
def test_the_token_of_spark_connect_is_the_password(
    monkeypatch: pytest.MonkeyPatch, content: dict[str, object], remote: str
) -> None:
    define(monkeypatch, "spark_connect_default", **({"host": "s", "port": 15002} | content))

    assert find_spark_remote() == remote


def test_an_unknown_setting_of_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "spark_connect_default", host="s", extra={"spark.executor.memory": "2g"})

    with pytest.raises(ConfigurationError, match=r"unknown settings: spark\.executor\.memory"):
        find_spark_remote()


@pytest.mark.parametrize(
    "name",
    [
        "my-lake", "my.lake", "my lake", "", "1", "`lake`", "größe", "SPARK_Catalog",
        "3d", "1e5", "12L", "5s", "7Y", "9f", "2bd", "1E5BD",
    ],
)  # fmt: skip
def test_a_catalog_that_spark_sql_cannot_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    extra = {"uri": "https://catalog.example.org", "catalog": name}
    define(monkeypatch, "iceberg_default", extra=extra)

    with pytest.raises(ConfigurationError, match="not an identifier of Spark SQL") as caught:
        find_catalog("iceberg_default")

    assert repr(name) in caught.value.facts
    assert "letters, digits and _" in caught.value.next_step


@pytest.mark.parametrize("name", ["lake", "Lake_2", "_lake", "3lakes", "1e", "12ls", "3_"])
def test_a_catalog_that_spark_sql_can_name_is_used(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    extra = {"uri": "https://catalog.example.org", "catalog": name}
    define(monkeypatch, "iceberg_default", extra=extra)

    assert find_catalog("iceberg_default").name == name
