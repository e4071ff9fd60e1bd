"""The command line uses connections that are only in Airflow: in its database or a backend."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ASKING = """
from frazil.connections.clients import find_kafka_config
from frazil_cli.airflow import use_stored_connections
use_stored_connections()
print(find_kafka_config("kafka_of_airflow"))
"""
STREAM = """\
stream: orders
owner: data@example.org
source: {topic: orders, connection: kafka_of_airflow}
value: {columns: {id: long!}}
table: {name: demo.orders}
"""
EXTRA = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "socket.keepalive.enable": True,
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an Airflow with a home and a database of its own, and one stream file."""
    (tmp_path / "orders.yaml").write_text(STREAM)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/c.db",
        "warehouse": f"file://{tmp_path}",
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
    return kept | {
        "HOME": str(tmp_path),
        "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps({"extra": catalog}),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "FRAZIL_HOME": str(tmp_path / "frazil"),
        "FRAZIL_STREAMS": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
    }


def call(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_connection_of_airflows_database_is_used(environment: dict[str, str]) -> None:
    assert call(environment, "airflow", "db", "migrate").returncode == 0
    missing = call(environment, "frazil", "plan", "orders")
    added = call(
        environment,
        *("airflow", "connections", "add", "kafka_of_airflow", "--conn-type", "kafka"),
        *("--conn-host", "127.0.0.1", "--conn-port", "1", "--conn-extra", json.dumps(EXTRA)),
        *("--conn-login", "me", "--conn-password", "planted-password"),
    )
    assert added.returncode == 0, added.stderr
    config = call(environment, "python", "-c", ASKING)
    plan = call(environment, "frazil", "plan", "orders")

    assert "connection 'kafka_of_airflow' is not defined" in missing.stderr
    assert "'bootstrap.servers': '127.0.0.1:1'" in config.stdout, config.stderr
    assert "'sasl.password': 'planted-password'" in config.stdout
    assert "'security.protocol': 'SASL_SSL'" in config.stdout
    assert "'socket.keepalive.enable': 'true'" in config.stdout
    assert plan.returncode == 1
    assert "Kafka at 127.0.0.1:1" in plan.stderr, plan.stderr
    assert "planted-" not in plan.stdout + plan.stderr


def test_a_connection_of_a_secrets_backend_is_used(
    environment: dict[str, str], tmp_path: Path
) -> None:
    found = {"conn_type": "kafka", "host": "127.0.0.1", "port": 1, "extra": EXTRA, "login": "me"}
    (tmp_path / "connections.json").write_text(json.dumps({"kafka_of_airflow": found}))
    backend = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
    environment |= {
        "AIRFLOW__SECRETS__BACKEND": backend,
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(
            {"connections_file_path": str(tmp_path / "connections.json")}
        ),
    }

    config = call(environment, "python", "-c", ASKING)

    assert "'bootstrap.servers': '127.0.0.1:1'" in config.stdout, config.stderr
    assert "'sasl.username': 'me'" in config.stdout


@pytest.mark.parametrize("extra", ["{'security.protocol': 'SASL_SSL'}", "[1]", '"x"', "a=b"])
def test_an_extra_that_is_no_object_is_refused_and_not_read_as_empty(
    environment: dict[str, str], extra: str
) -> None:
    script = (
        "from frazil_airflow.connections import find_airflow_connection\n"
        "from frazil.errors import ConfigurationError\n"
        "try:\n    print(find_airflow_connection('odd'))\n"
        "except ConfigurationError as error:\n    print(error.facts)\n"
    )
    odd = json.dumps({"conn_type": "kafka", "host": "k", "extra": extra})
    ended = call(environment | {"AIRFLOW_CONN_ODD": odd}, "python", "-c", script)

    assert "connection 'odd': its extra is not a JSON object" in ended.stdout, ended.stderr
