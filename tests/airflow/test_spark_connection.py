"""The connection `spark_default` means the same to Frazil and to Airflow's own Spark provider."""

import json
import os
from pathlib import Path

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from frazil.connections.lookup import find_connection
from frazil.spark.submit import list_options, resolve_master

pytestmark = pytest.mark.airflow
CONNECTIONS = [
    pytest.param({"conn_type": "spark", "host": "spark://m", "port": 7077}, id="scheme and port"),
    pytest.param({"conn_type": "spark", "host": "spark://m:7077"}, id="whole address"),
    pytest.param({"conn_type": "spark", "host": "m", "port": 7077}, id="host and port"),
    pytest.param({"conn_type": "spark", "host": "yarn"}, id="a word"),
    pytest.param({"conn_type": "spark", "host": "local[2]"}, id="this process"),
    pytest.param({"conn_type": "spark", "host": "yarn", "extra": {"queue": "night"}}, id="a queue"),
]


@pytest.mark.parametrize("content", CONNECTIONS)
def test_a_connection_names_the_same_master(
    content: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "spark-submit"
    binary.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words')
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(content))

    SparkSubmitHook().submit("job.py")
    theirs = (tmp_path / "words").read_text().split()
    ours = find_connection("spark_default")

    assert theirs[:2] == ["--master", resolve_master(ours)]
    assert theirs[-3 if "--queue" in theirs else -1 : -1] == [*list_options(ours)]
