"""Connections by their id: the environment, the embedded stack, Airflow."""

import json
from pathlib import Path

import pytest

from frazil.connections import lookup
from frazil.connections.clients import (
    CatalogPreset,
    find_catalog,
    find_kafka_config,
    find_spark_remote,
)
from frazil.connections.lookup import Connection, find_connection, is_secret
from frazil.errors import ConfigurationError, ConnectionMissingError
from frazil.kafka.client_settings import to_spark_options

STACK = {
    "kafka": {"bootstrap": "127.0.0.1:9092"},
    "catalog": {"name": "lake", "properties": {"type": "sql", "uri": "sqlite:////x/c.db"}},
    "spark_connect": {"url": "sc://127.0.0.1:15002"},
}


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


def test_a_login_and_a_password_of_digits_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"bootstrap.servers": "k:9093", "sasl.mechanism": "PLAIN"}
    own |= {"security.protocol": "SASL_PLAINTEXT"}
    define(monkeypatch, "kafka_default", login=4711, password=8150, extra=own)

    config = find_kafka_config("kafka_default")

    assert 'username="4711" password="8150"' in to_spark_options(config)["kafka.sasl.jaas.config"]


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
    monkeypatch.setattr(lookup, "_resolvers", list(lookup._resolvers))  # noqa: SLF001
    lookup.add_resolver(lambda name: Connection(name, host="from Airflow"))

    assert find_connection("elsewhere").host == "from Airflow"


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


DAMAGED = [
    *('{"kafka": ', "[]", "{}", "", "null", "5", '"x"', "\x00", "[" * 5000, '{"kafka": {}}'),
    *('{"kafka": 5}', '{"kafka": {"bootstrap": 5}}', '{"catalog": {"name": "a"}}'),
    *('{"catalog": {"name": "a", "properties": 5}}', '{"spark_connect": {"url": null}}'),
]


@pytest.mark.parametrize("text", DAMAGED, ids=[text[:30] for text in DAMAGED])
@pytest.mark.parametrize("name", ["kafka_default", "iceberg_default", "spark_connect_default"])
def test_a_damaged_record_of_the_stack_is_told_with_the_next_step(
    home: Path, name: str, text: str
) -> None:
    (home / "stack").mkdir()
    (home / "stack" / "stack.json").write_text(text)

    with pytest.raises(ConfigurationError) as caught:
        find_connection(name)

    assert "stack.json" in caught.value.facts
    assert f"{name!r}" in caught.value.facts
    assert "frazil stack up" in caught.value.next_step


@pytest.mark.parametrize("text", DAMAGED, ids=[text[:30] for text in DAMAGED])
def test_a_damaged_record_of_the_stack_hides_no_other_connection(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (home / "stack").mkdir()
    (home / "stack" / "stack.json").write_text(text)
    define(monkeypatch, "kafka_default", extra={"bootstrap.servers": "b:1"})

    assert find_connection("kafka_default").extra == {"bootstrap.servers": "b:1"}
    with pytest.raises(ConnectionMissingError):
        find_connection("other")
