"""`frazil doctor` asks the servers that the environment's connections name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.lake import make_stream

from frazil.connections.clients import find_catalog
from frazil.iceberg.catalog import TableStore
from frazil.ingest.bootstrap import new_table
from frazil_cli.checks.check import Check
from frazil_cli.checks.doctor import examine
from frazil_stack.settings import load_settings


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home and one stream file of its own."""
    folder = tmp_path / "streams"
    folder.mkdir()
    stream = {
        "stream": "orders",
        "owner": "data-platform@example.org",
        "source": {"topic": "orders"},
        "value": {"columns": {"id": "long!"}},
        "table": {"name": "demo.orders"},
    }
    (folder / "orders.yaml").write_text(yaml.safe_dump(stream))
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FRAZIL_STREAMS", str(folder))
    return folder


def connections_of() -> dict[str, Check]:
    checks = examine(load_settings())
    return {c.name: c for c in checks if c.name.startswith("Connection ")}


@pytest.mark.usefixtures("streams")
def test_connections_that_the_environment_leaves_to_the_stack_are_not_asked() -> None:
    assert connections_of() == {}


@pytest.mark.usefixtures("streams")
def test_a_broker_that_does_not_answer_is_named_and_a_catalog_that_does_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.kafka.cluster.PROBE_TIMEOUT_SECONDS", 0.5)
    broker = {"extra": {"bootstrap.servers": "127.0.0.1:9"}}
    catalog = {"extra": {"catalog": "lake", "type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(broker))
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(catalog))

    found = connections_of()

    kafka, lake = found["Connection kafka_default"], found["Connection iceberg_default"]
    assert (kafka.is_good, lake.is_good) == (False, True)
    assert "127.0.0.1:9" in kafka.detail
    assert "nothing listens at this address" in kafka.detail
    assert "correct `bootstrap.servers`" in kafka.fix
    assert lake.detail == "answers: 0 namespaces"


@pytest.mark.usefixtures("streams")
def test_a_table_that_another_engine_made_unwritable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = {
        "catalog": "lake",
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/c.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"extra": catalog}))
    new = new_table(make_stream())
    strange = replace(new, properties={**(new.properties or {}), "write.format.default": "orc"})
    TableStore(find_catalog("iceberg_default")).create("demo.orders", strange)

    found = [check for check in examine(load_settings()) if check.name == "Table demo.orders"]

    assert [check.is_good for check in found] == [False]
    assert "write.format.default is orc" in found[0].detail
    assert "UNSET TBLPROPERTIES" in found[0].fix


@pytest.mark.usefixtures("streams")
def test_connections_that_a_client_would_not_understand_are_rows_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = {"extra": {"bootstrap.servers": "127.0.0.1:9", "sasl.password": "x"}}
    catalog = {"extra": {"uri": "http://127.0.0.1:9", "scop": "x"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(broker))
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(catalog))

    found = connections_of()

    assert "no effect: sasl.password" in found["Connection kafka_default"].detail
    assert "Spark would not get: scop" in found["Connection iceberg_default"].detail
