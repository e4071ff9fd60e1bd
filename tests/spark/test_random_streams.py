"""Random records of a topic become rows or dead letters as an oracle says: run, stage, publish."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from conftest import Lab
from faults.auditor import audit_table
from pyiceberg.catalog import load_catalog
from support.column_fuzz import write_columns
from support.figures import FIRST_SEED, PROPERTY
from support.json_oracle import BAD, UNTOLD
from support.random_topics import (
    Envelope,
    RandomTopic,
    Reading,
    make_envelopes,
    make_json,
    make_registered,
)
from support.registry_lab import RegistryLab
from support.told_values import is_as_told

from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.stack]

SEEDS, RECORDS, SAMPLE = 10, 1000, 300
PARTITIONS = 2
KEEPS_ALL = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
"""The broker refuses no timestamp, and no age makes it delete a record."""
UNKNOWN: Mapping[str, Mapping[str, str]] = {
    "json": {},
    "by_schema_id": {"unknown_id": "quarantine"},
}
"""Some headers have an id that no schema has."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def send(lab: Lab, topic: RandomTopic, envelopes: Sequence[Envelope]) -> None:
    """Send the values in order, by turns to each partition."""
    config = {"bootstrap.servers": lab.stack.bootstrap, "enable.idempotence": True}
    producer, failed = Producer(config), list[object]()
    for index, (value, envelope) in enumerate(zip(topic.values, envelopes, strict=True)):
        producer.produce(
            lab.topic,
            value=value,
            key=envelope.key,
            headers=envelope.headers,
            timestamp=envelope.timestamp_ms,
            partition=index % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert not failed


@dataclass(frozen=True)
class Found:
    """What became of a record: a row, or the reason of its dead letter."""

    outcome: dict[str, object] | str
    kafka: dict[str, object]
    value: bytes | None = None


def read_table(lab: Lab, name: str) -> list[dict[str, object]]:
    """Read the data files as they are: readers of tables lose nulls."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    tasks = catalog.load_table(name).scan().plan_files()
    paths = [task.file.file_path.removeprefix("file://") for task in tasks]
    return [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]


def read_found(lab: Lab, table: str) -> list[Found]:
    """Read the rows and the dead letters."""
    rows = [Found(row, row.pop("_kafka")) for row in read_table(lab, table)]  # type: ignore[arg-type]
    letters = [
        Found(str(letter["reason"]), letter["_kafka"], letter["value"])  # type: ignore[arg-type]
        for letter in read_table(lab, f"{table}__dead_letters")
    ]
    return [*rows, *letters]


def run_stream(lab: Lab, convert: str, reading: Reading) -> str:
    """Read the lab's topic into a table of its own; return the table's name."""
    stream = f"r{secrets.token_hex(4)}"
    own = Lab(lab.stack, lab.folder, stream, dict(lab.document))
    own.write_stream(
        stream=stream,
        source={"topic": lab.topic},
        value={"convert": convert, "columns": write_columns(reading.columns), **UNKNOWN[convert]},
        table={"name": own.table, "partition_by": ["bucket(id, 2)"]},
        errors={"max_bad_ratio": 1.0},
        batch={"max_records": 100_000},
    )
    ran = own.frazil("run", stream, **{MIN_RECORDS_VARIABLE: str(reading.smallest_batch)})
    assert ran.code == 0, ran.out + ran.err
    audit = own.frazil("audit", stream, "--values")
    assert audit.code == 0, audit.out + audit.err
    stack = lab.stack
    report = audit_table(stack.catalog_properties, "lake", own.table, stack.bootstrap, stream)
    assert report.findings == ()
    return own.table


def compare(
    topic: RandomTopic, envelopes: Sequence[Envelope], reading: Reading, found: Sequence[Found]
) -> None:
    """Compare each record with the oracle, byte for byte what travelled with it."""
    count = len(topic.values)
    by_index = {
        int(str(f.kafka["offset"])) * PARTITIONS + int(str(f.kafka["partition"])): f for f in found
    }
    assert len(found) == len(by_index) == count
    for index in range(count):
        each, value, told = by_index[index], topic.values[index], reading.told[index]
        assert is_as_told(each.outcome, told, reading.columns), (value, each.outcome, told)
        assert each.outcome != "decoder_failed", value
        assert isinstance(each.outcome, dict) or each.value == value
        headers = each.kafka["headers"] or []
        assert isinstance(headers, list)
        sent = envelopes[index]
        assert [tuple(header.values()) for header in headers] == sent.headers
        assert each.kafka["key"] == sent.key
        assert each.kafka["timestamp"] == EPOCH + timedelta(milliseconds=sent.timestamp_ms)


@pytest.mark.storm(1)
@pytest.mark.parametrize("form", ["JSON", "Avro", "Protobuf"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_records_of_a_topic_become_rows_and_dead_letters(
    lab: Lab,
    seed: int,
    form: str,
    sampled: bool,  # noqa: FBT001
    record_property: Callable[[str, object], None],
) -> None:
    number, count = FIRST_SEED + seed, SAMPLE if sampled else RECORDS
    lab.create_topic(PARTITIONS, **KEEPS_ALL)
    with SchemaRegistryClient({"url": lab.stack.registry_url}) as client:
        topic = (
            make_json(number, count)
            if form == "JSON"
            else make_registered(form, number, count, RegistryLab(lab, client).register)
        )
    convert = "json" if form == "JSON" else "by_schema_id"
    envelopes = make_envelopes(number, count)
    send(lab, topic, envelopes)
    counts = {f"{form} records of topics": count}

    for decoder, reading in topic.readings.items():
        assert 0 < reading.told.count(BAD) < count
        assert reading.told.count(UNTOLD) < count / 8
        found = read_found(lab, run_stream(lab, convert, reading))
        compare(topic, envelopes, reading, found)
        rows = sum(isinstance(each.outcome, dict) for each in found)
        counts |= {f"{form} rows ({decoder})": rows, f"{form} letters ({decoder})": count - rows}

    record_property(PROPERTY, counts)
