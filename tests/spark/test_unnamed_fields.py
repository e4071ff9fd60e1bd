"""Fields that no column names are left out, and a sample of each batch tells their names."""

import json
import sys

import numpy as np
import pytest
from conftest import REPO, Lab
from pyiceberg.catalog import load_catalog
from support.avro_bytes import encode, record
from support.registry_lab import RegistryLab, frame, read_table

from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE
from frazil.ledger.recovery_point import keys

sys.path.insert(0, str(REPO / "spark_jobs"))
from frazil_spark.fast_path.worker import find_sampled
from frazil_spark.sampling import SAMPLED_RECORDS, choose_sample_step

pytestmark = [pytest.mark.spark, pytest.mark.stack]

COLUMNS = {"id": "long!", "name": "string", "place": "struct<city:string,at:struct<x:double>>"}
WAYS = pytest.mark.parametrize("workers_from", [0, 10**9], ids=["workers first", "Spark alone"])


def run(lab: Lab, records: list[object], workers_from: int) -> dict[str, str]:
    """Send the records, read them as one batch, and give the snapshot's summary."""
    lab.write_stream(
        value={"convert": "json", "columns": COLUMNS},
        table={"name": lab.table},
        errors={"max_bad_ratio": 1.0},
        batch={"max_records": 10_000},
    )
    values = [record if isinstance(record, bytes) else json.dumps(record) for record in records]
    lab.produce([v if isinstance(v, bytes) else v.encode() for v in values], partitions=1)
    done = lab.frazil("run", lab.stream, **{MIN_RECORDS_VARIABLE: str(workers_from)})
    assert done.code == 0, done.err
    head = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)
    snapshot = head.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return dict(snapshot.summary.additional_properties)


@WAYS
def test_the_snapshot_the_status_and_the_timeline_name_them(lab: Lab, workers_from: int) -> None:
    lab.create_topic(partitions=1)
    summary = run(
        lab,
        [
            {"id": 1, "name": "a", "colour": "red"},
            {"id": 2, "place": {"city": "b", "zip": 1, "at": {"x": 1.5, "y": {"deep": 2}}}},
            {"id": 3, "it's": 1, "jane@example.org": 1, "a[/x]b": 1, "n" * 61: 1, "place": None},
            {"id": 3, "order-id": 1, "@timestamp": 1, "dotted.name": 1, "#text": 1, "sha-256": 1},
            {"id": 4, "place": {"at": None}},
            {"id": "of a dead letter", "broken": 1},
            b'{"id":5,"cut off',
        ],
        workers_from,
    )

    odd = ["`#text`", "`@timestamp`", "`dotted.name`", "`order-id`"]
    found = [*odd, "colour", "place.at.y", "place.zip"]
    assert json.loads(summary[keys.UNNAMED_FIELDS]) == found
    told = ", ".join(found)  # and no name that may be data
    for command in (["status"], ["readiness"], ["timeline", "--stream"]):
        assert told in lab.frazil(*command, lab.stream, "--json").out

    assert told in lab.frazil("status", lab.stream).out.replace("\n", " ")
    assert keys.UNNAMED_FIELDS not in run(lab, [{"id": 6, "name": "b"}], workers_from)
    assert "no column names" not in lab.frazil("status", lab.stream, "--json").out


@WAYS
def test_of_a_big_batch_some_hundred_records_are_looked_at(lab: Lab, workers_from: int) -> None:
    lab.create_topic(partitions=1)
    records: list[object] = [{"id": n, f"field_{n:04}": 1} for n in range(3000)]

    named = json.loads(run(lab, records, workers_from)[keys.UNNAMED_FIELDS])

    step = choose_sample_step({"topic": {0: (0, 3000)}})
    sampled = np.flatnonzero(find_sampled(np.arange(3000), step)).tolist()
    assert named == [f"field_{n:04}" for n in sampled[:10]], "ten at most"
    assert SAMPLED_RECORDS - 50 < len(sampled) < 2 * SAMPLED_RECORDS


@pytest.mark.parametrize("step", [2, 20, 1000])
@pytest.mark.parametrize("rhythm", [2, 3, 4])
def test_records_in_a_rhythm_are_sampled_as_others_are(step: int, rhythm: int) -> None:
    for begin in range(rhythm):
        offsets = np.arange(begin, 100_000, rhythm)
        share = find_sampled(offsets, step).sum() * step / len(offsets)
        assert 0.5 < share < 2


def test_a_record_that_is_too_long_is_not_looked_through(lab: Lab) -> None:
    lab.create_topic(partitions=1)

    summary = run(lab, [{"id": 1, "long": "x" * 20_000}, {"id": 2, "short": 1}], 10**9)

    assert json.loads(summary[keys.UNNAMED_FIELDS]) == ["short"]


def test_fields_of_a_followed_schema_that_no_column_can_have_are_named(
    registry: RegistryLab,
) -> None:
    lab = registry.lab
    registry.write_stream()
    for added in ((), (("_deleted", "int"), ("ID", "int"), ("x", "int"))):
        schema = record(("id", "int"), *added)
        number = registry.register(json.dumps(schema))
        row = {"id": 1, **{name: 2 for name, _ in added}}
        registry.send([frame(number, encode(schema, row))])
        done = lab.frazil("run", lab.stream)
        assert done.code == 0, done.err

    (_, row) = read_table(lab)
    assert {name: value for name, value in row.items() if name != "_kafka"} == {"id": 1, "x": 2}
    assert "`ID`, `_deleted`" in lab.frazil("status", lab.stream).out
