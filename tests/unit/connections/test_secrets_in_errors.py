"""No error quotes a value of a connection that may be a secret; each names the key."""

import json

import pytest

from frazil.connections.clients import (
    find_catalog,
    find_kafka_config,
    find_registry_config,
    find_spark_remote,
)
from frazil.connections.lookup import find_connection
from frazil.errors import ConfigurationError, FrazilError
from frazil.iceberg.catalog import TableStore
from frazil.kafka.cluster import KafkaLog
from frazil.kafka.schema_registry import SchemaRegistry
from frazil.spark.submit import SubmitEngine

SECRET = "S3cr3tPw"  # noqa: S105 - of no server
REST = {"type": "rest", "uri": "http://127.0.0.1:1"}
BROKER = {"bootstrap.servers": "127.0.0.1:1"}
READERS = {
    "catalog": lambda: TableStore(find_catalog("c")).find("demo.orders"),
    "Kafka": lambda: KafkaLog(find_kafka_config("c")),
    "Spark Connect": lambda: find_spark_remote("c"),
    "spark-submit": lambda: SubmitEngine(find_connection("c"), find_catalog("lake")),
    "registry": lambda: SchemaRegistry(find_registry_config("c")),
}


@pytest.mark.parametrize(
    ("reader", "content", "named"),
    [
        ("catalog", {"extra": REST | {"header.X-Key": f"{SECRET}\n"}}, "`header.X-Key`"),
        ("catalog", {"extra": REST | {"header.Authorization": f" Bearer {SECRET}"}}, "`header.Au"),
        ("catalog", {"extra": REST | {"header.X": f"{SECRET}\n x"}}, "`header.X`"),
        ("catalog", {"extra": REST | {"token": f"{SECRET}\n"}}, "`token`"),
        ("catalog", {"extra": REST | {"credential": f"id:{SECRET} "}}, "`credential`"),
        ("catalog", {"extra": REST | {"token": f"{SECRET}€"}}, "opening catalog lake"),
        (
            "catalog",
            {"extra": REST | {"uri": f"u:{SECRET}@h/api"}},
            "address of uri",
        ),
        ("catalog", {"extra": REST | {"uri": f"{SECRET}.example.org"}}, "opening catalog lake"),
        ("catalog", {"extra": {"type": SECRET, "uri": "x://h"}}, "catalog type"),
        ("catalog", {"extra": {"type": "s3tables", "warehouse": SECRET}}, "ARN of a table bucket"),
        ("Kafka", {"host": "h", "port": SECRET}, "its port"),
        ("Kafka", {"extra": {"bootstrap.servers": f"kafka://u:{SECRET}@127.0.0.1:1"}}, "servers"),
        ("Kafka", {"extra": {"bootstrap.servers": f"a:1,u:{SECRET}@127.0.0.1"}}, "bootstrap"),
        ("Kafka", {"host": f"u:{SECRET}@127.0.0.1", "port": 1}, "`host`"),
        ("Kafka", {"extra": BROKER | {"sasl.password": f"{SECRET}\n"}}, "`sasl.password`"),
        ("Kafka", {"login": "u", "password": f"{SECRET}\r\n", "extra": BROKER}, "`password`"),
        ("Kafka", {"extra": BROKER | {"debug": SECRET}}, '"debug"'),
        ("Kafka", {"extra": BROKER | {"debug": f'"{SECRET}"'}}, '"debug"'),
        ("Kafka", {"extra": BROKER | {"security.protocol": SECRET}}, "security.protocol"),
        (
            "Kafka",
            {"extra": BROKER | {"security.protocol": "SASL_SSL", "sasl.mechanism": SECRET}},
            "sasl.mechanism",
        ),
        ("Spark Connect", {"host": f"sc://u:{SECRET}@h"}, "`host`"),
        ("spark-submit", {"host": f"spark://u:{SECRET}@h"}, "`host`"),
        ("spark-submit", {"host": "local", "extra": {"deploy-mode": SECRET}}, "deploy-mode"),
        ("registry", {"host": "http://h", "extra": {"timeout": SECRET}}, "timeout"),
        ("registry", {"host": f"u:{SECRET}@"}, "host"),
    ],
)
def test_an_error_names_the_key_and_never_the_value(
    monkeypatch: pytest.MonkeyPatch, reader: str, content: dict[str, object], named: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps(content))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"extra": REST}))

    with pytest.raises(FrazilError) as refused:
        READERS[reader]()

    assert SECRET.lower() not in str(refused.value).lower()
    assert named in refused.value.facts
    assert not refused.value.retryable


@pytest.mark.parametrize(
    "extra",
    [
        {"sasl.password": " a b "},
        {"sasl.jaas.config": "a\nb;\n"},
        {"ssl.key.pem": "-----BEGIN\nx\n"},
        {"credential": "id:p@ss"},
    ],
    ids=["a password with blanks", "several lines of Java", "a key", "a password with @"],
)
def test_values_that_may_be_meant_so_are_read(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"extra": REST | extra}))

    assert find_connection("c").extra == REST | extra


def test_a_client_secret_with_an_at_sign_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"extra": REST | {"credential": "id:p@ss"}}))

    assert find_catalog("c").properties["credential"] == "id:p@ss"


@pytest.mark.parametrize("uri", ["abfss://box@account.dfs.core.windows.net", "thrift://h:9083"])
def test_an_address_without_a_password_is_read(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    content = {"extra": {"type": "hive", "uri": "thrift://h:9083", "warehouse": uri}}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps(content))

    assert find_catalog("c").properties["warehouse"] == uri


def test_a_port_beside_a_host_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"host": "h:1", "port": 2}))

    with pytest.raises(ConfigurationError, match="its host has the port 1, and its port is 2"):
        find_kafka_config("c")
