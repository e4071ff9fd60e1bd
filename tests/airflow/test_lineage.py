"""Datasets are named by OpenLineage's conventions; nothing of it is loaded where it is unused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.state_lake import Change, StateLake, make_state_lake

from frazil.state_tables.messages import MergeCounts, Merged
from frazil_airflow.lineage import describe_lineage, name_location, name_topic

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


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateLake:
    """Publish three changes, and put the two rows of their state."""
    lake = make_state_lake(StateLake, tmp_path, "orders")
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    connection = {"conn_type": "iceberg", "extra": extra | {"warehouse": f"file://{tmp_path}"}}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    lake.produce(0, Change(1, "c", 1), Change(2, "c", 1), Change(2, "u", 2))
    lake.ingest_all()
    return lake


def test_a_merge_is_lineage_from_the_change_table_to_the_state_table(lake: StateLake) -> None:
    found = dict.fromkeys(MergeCounts.model_fields, 0)
    counts = MergeCounts(**found | {"changes": 3, "inserted": 2, "superseded": 1})
    lake.put_state([], lake.position(counts))
    merged = Merged(
        stream="orders",
        table="states.orders",
        outcome="MERGED",
        snapshot_id=8,
        change_snapshot=7,
        counts=counts,
        rebuilt="first merge",
    )

    lineage = describe_lineage(merged)

    assert lineage is not None
    (changes,), (state,) = lineage.inputs, lineage.outputs
    assert changes.name == name_location(lake.table.location())[1]
    assert state.name == name_location(lake.store.load("states.orders").location())[1]
    assert [changes.facets[n].datasetVersion for n in ["version"]] == ["7"]  # type: ignore[attr-defined, index]
    fields = {f.name for f in state.facets["schema"].fields}  # type: ignore[attr-defined, index]
    traced = state.facets["columnLineage"].fields  # type: ignore[attr-defined, index]
    assert fields == {*traced} == {"id", "at", "name"}
    assert traced["at"].inputFields[0].name == changes.name
    facet = state.facets["frazil_merge"]  # type: ignore[index]
    assert facet.counts == counts.model_dump()  # type: ignore[attr-defined]


def test_a_merge_that_had_nothing_to_do_has_no_lineage(lake: StateLake) -> None:
    nothing = Merged(stream=lake.stream.stream, table="states.orders", outcome="NOTHING")

    assert describe_lineage(nothing) is None
