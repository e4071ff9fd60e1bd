"""One connection serves PyIceberg, Spark and Kafka; its secrets stay in this process."""

import json
from pathlib import Path

import pytest

from frazil import connections
from frazil.connections import (
    CatalogPreset,
    Connection,
    find_catalog,
    find_connection,
    find_kafka_config,
    find_spark_remote,
    home_dir,
    is_secret,
    streams_dir,
)
from frazil.errors import ConfigurationError, ConnectionMissingError
from frazil.kafka.client_settings import to_spark_options
from frazil.kafka.cluster import KafkaLog

STACK = {
    "kafka": {"bootstrap": "127.0.0.1:9092"},
    "catalog": {"name": "lake", "properties": {"type": "sql", "uri": "sqlite:////x/c.db"}},
    "spark_connect": {"url": "sc://127.0.0.1:15002"},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a home of its own and no connections."""
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    for name in ("KAFKA_DEFAULT", "ICEBERG_DEFAULT", "SPARK_CONNECT_DEFAULT"):
        monkeypatch.delenv(f"AIRFLOW_CONN_{name}", raising=False)
    return tmp_path


def define(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    """Define a connection as Airflow reads it from the environment."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(content))


def start_stack(home: Path) -> None:
    """Leave the record that `frazil stack up` leaves."""
    (home / "stack").mkdir()
    (home / "stack" / "stack.json").write_text(json.dumps(STACK))


def test_the_embedded_stack_defines_the_three_connections(home: Path) -> None:
    start_stack(home)

    assert find_kafka_config("kafka_default") == {"bootstrap.servers": "127.0.0.1:9092"}
    assert find_spark_remote() == "sc://127.0.0.1:15002"
    assert find_catalog("iceberg_default") == CatalogPreset(
        "lake", {"type": "sql", "uri": "sqlite:////x/c.db"}
    )


def test_the_environment_wins_over_the_stack(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_stack(home)
    define(monkeypatch, "kafka_default", extra={"bootstrap.servers": "kafka:9093"})

    assert find_kafka_config("kafka_default") == {"bootstrap.servers": "kafka:9093"}


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


def test_a_login_and_a_password_of_digits_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"bootstrap.servers": "k:9093", "sasl.mechanism": "PLAIN"}
    own |= {"security.protocol": "SASL_PLAINTEXT"}
    define(monkeypatch, "kafka_default", login=4711, password=8150, extra=own)

    config = find_kafka_config("kafka_default")

    assert 'username="4711" password="8150"' in to_spark_options(config)["kafka.sasl.jaas.config"]


def test_numbers_and_booleans_of_an_extra_become_the_texts_that_clients_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"enable.ssl.certificate.verification": True, "request.timeout.ms": 30000, "x": None}
    own |= {"security.protocol": "SSL"}
    define(monkeypatch, "kafka_default", extra={"bootstrap.servers": "k:9092", **own})
    define(monkeypatch, "iceberg_default", extra={"uri": "http://c", "s3.force-virtual": False})
    define(monkeypatch, "spark_default", extra=json.dumps({"spark.cores.max": 4}))

    kafka = find_kafka_config("kafka_default")

    assert kafka["enable.ssl.certificate.verification"] == "true"
    assert (kafka["request.timeout.ms"], "x" in kafka) == ("30000", False)
    assert KafkaLog(kafka) is not None
    assert find_catalog("iceberg_default").properties["s3.force-virtual"] == "false"
    assert find_connection("spark_default").extra == {"spark.cores.max": "4"}


@pytest.mark.parametrize(("value", "kind"), [({"a": 1}, "an object"), ([1], "a list")])
def test_a_nested_setting_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, value: object, kind: str
) -> None:
    define(monkeypatch, "kafka_default", extra={"bootstrap.servers": "k:9092", "ssl": value})

    with pytest.raises(ConfigurationError, match=f"'kafka_default': 'ssl' of its extra is {kind}"):
        find_kafka_config("kafka_default")


def test_an_extra_that_is_no_object_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "kafka_default", extra="[1]")

    with pytest.raises(ConnectionMissingError, match="not a connection in Airflow's JSON format"):
        find_kafka_config("kafka_default")


def test_airflows_own_connections_are_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_resolvers", list(connections._resolvers))  # noqa: SLF001
    connections.add_resolver(lambda name: Connection(name, host="from Airflow"))

    assert find_connection("elsewhere").host == "from Airflow"


def test_no_secret_shows_when_a_connection_or_preset_is_printed() -> None:
    connection = Connection("k", password="s3cret", extra={"jaas": "s3cret"})  # noqa: S106
    preset = CatalogPreset("lake", {"s3.secret-access-key": "s3cret"})

    assert "s3cret" not in f"{connection!r} {connection} {preset!r} {preset}"


@pytest.mark.parametrize(
    ("key", "value", "secret"),
    [
        ("s3.secret-access-key", "x", True),
        ("s3.access-key-id", "x", True),
        ("s3.session-token", "x", True),
        ("credential", "a:b", True),
        ("sasl.password", "x", True),
        ("header.X-Api-Key", "x", True),
        ("header.X-Tenant", "x", True),
        ("rest.Authorization", "x", True),
        ("s3.api_key", "x", True),
        ("client.cookie", "x", True),
        ("uri", "postgresql+psycopg2://u:p@h/db", True),
        ("uri", "http://h:8181", False),
        ("warehouse", "s3://lake", False),
    ],
)
def test_a_secret_is_recognised(key: str, value: str, secret: bool) -> None:  # noqa: FBT001
    assert is_secret(key, value) is secret


def test_spark_sees_the_same_sql_catalog() -> None:
    preset = CatalogPreset(
        "lake", {"type": "sql", "uri": "sqlite:////x/c.db", "warehouse": "file:///x/w"}
    )

    conf = preset.spark_conf()

    assert conf == {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.lake.uri": "jdbc:sqlite:file:/x/c.db",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.warehouse": "file:///x/w",
    }


def test_spark_sees_the_same_rest_catalog_without_its_secrets() -> None:
    properties = {"type": "rest", "uri": "http://c:8181", "token": "s3cret", "s3.region": "eu"}

    conf = CatalogPreset("prod", properties | {"s3.secret-access-key": "s3cret"}).spark_conf()

    assert conf["spark.sql.catalog.prod.type"] == "rest"
    assert conf["spark.sql.catalog.prod.s3.region"] == "eu"
    assert "s3cret" not in str(conf)


@pytest.mark.parametrize(
    "key", ["header.Authorization", "header.X-Tenant", "client.session-cookie"]
)
def test_what_is_sent_with_each_request_to_the_catalog_stays_here(key: str) -> None:
    properties = {"type": "rest", "uri": "http://c:8181", "s3.region": "eu", key: "s3cret"}

    preset = CatalogPreset("prod", properties)

    assert preset.spark_conf()["spark.sql.catalog.prod.s3.region"] == "eu"
    assert "s3cret" not in f"{preset.spark_conf()} {preset}"


def test_a_postgresql_catalog_gives_spark_no_password() -> None:
    uri = "postgresql+psycopg2://u:s3cret@db:5432/catalog"

    conf = CatalogPreset("lake", {"type": "sql", "uri": uri}).spark_conf()

    assert "s3cret" not in str(conf)


def test_folders_can_be_pointed_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path / "files"))

    assert (home_dir(), streams_dir()) == (tmp_path, tmp_path / "files")


@pytest.mark.parametrize("name", ["my-lake", "my.lake", "my lake", "", "1", "`lake`", "größe"])
def test_a_catalog_that_spark_sql_cannot_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    extra = {"uri": "https://catalog.example.org", "catalog": name}
    define(monkeypatch, "iceberg_default", extra=extra)

    with pytest.raises(ConfigurationError, match="not an identifier of Spark SQL") as caught:
        find_catalog("iceberg_default")

    assert repr(name) in caught.value.facts
    assert "letters, digits and _" in caught.value.next_step


@pytest.mark.parametrize("name", ["lake", "Lake_2", "_lake"])
def test_a_catalog_that_spark_sql_can_name_is_used(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    extra = {"uri": "https://catalog.example.org", "catalog": name}
    define(monkeypatch, "iceberg_default", extra=extra)

    assert find_catalog("iceberg_default").name == name
