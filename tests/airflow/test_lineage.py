"""Datasets are named by OpenLineage's conventions; nothing of it is loaded where it is unused."""

import subprocess
import sys
from pathlib import Path

import pytest

from frazil_airflow.lineage import name_location, name_topic

INCLUDE = Path(__file__).parents[2] / "include"


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("s3://lake/shop/orders", ("s3://lake", "shop/orders")),
        ("s3a://lake/shop/orders/", ("s3://lake", "shop/orders")),
        ("gs://lake/shop/orders", ("gs://lake", "shop/orders")),
        (
            "abfss://c@a.dfs.core.windows.net/shop",
            ("abfss://c@a.dfs.core.windows.net", "shop"),
        ),
        ("file:///srv/lake/orders", ("file", "/srv/lake/orders")),
        ("/srv/lake/orders", ("file", "/srv/lake/orders")),
    ],
    ids=["S3", "Hadoop's S3", "Google", "Azure", "file", "path"],
)
def test_a_table_is_named_by_its_location(location: str, name: tuple[str, str]) -> None:
    assert name_location(location) == name


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ("a:9092, b:9092", "kafka://a:9092"),
        ("SASL_SSL://kafka:9093,SASL_SSL://b:9093", "kafka://kafka:9093"),
        ("PLAINTEXT://[::1]:9092", "kafka://[::1]:9092"),
    ],
)
def test_a_topic_is_named_by_the_first_server(servers: str, namespace: str) -> None:
    assert name_topic(servers, "orders") == (namespace, "orders")


def test_a_dag_file_loads_nothing_of_openlineage() -> None:
    loaded = "[m for m in sys.modules if m.startswith('openlineage')]"
    check = f"import sys, frazil_airflow.tasks; print({loaded})"
    run = subprocess.run(
        [sys.executable, "-c", check],
        env={"PYTHONPATH": str(INCLUDE), "AIRFLOW_HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.stdout.splitlines()[-1:] == ["[]"], run.stderr
