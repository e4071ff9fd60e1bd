"""Parsing stays light: every process of Airflow pays for what DAG files and plugins import."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

PROJECT = Path(__file__).parents[2]
HEAVY = (
    "pyspark",
    "pyiceberg",
    "great_expectations",
    "confluent_kafka",
    "pandas",
    "pyarrow",
    "numpy",
    "fastapi",
)
PROGRAM = """
import sys, importlib.util
import airflow.sdk
from airflow.plugins_manager import AirflowPlugin
before = set(sys.modules)
heavy = set(sys.argv[1].split(","))
for path in sys.argv[2:]:
    spec = importlib.util.spec_from_file_location("parsed", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
print("found:", *sorted(heavy & (set(sys.modules) - before)))
import numpy
print("with a heavy one:", *sorted({"numpy"} & (set(sys.modules) - before)))
"""


def test_dag_files_and_the_plugin_import_nothing_heavy(write_stream: Callable[..., Path]) -> None:
    environment = {**os.environ, "FRAZIL_STREAMS": str(write_stream("orders").parent)}
    plugin = PROJECT / "include" / "frazil_airflow" / "plugin.py"
    files = [*sorted((PROJECT / "dags").glob("*.py")), plugin]

    command = [sys.executable, "-c", PROGRAM, ",".join(HEAVY), *map(str, files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    # The second line shows that the measurement would see one.
    assert done.stdout.splitlines()[-2:] == ["found:", "with a heavy one: numpy"]
