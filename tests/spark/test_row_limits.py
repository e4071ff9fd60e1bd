"""Values that a merge or a partition cannot do without: their records are dead letters."""

import json
from typing import Any

import pytest
from conftest import Lab
from pyiceberg.catalog import load_catalog
from support.avro_bytes import encode, record
from support.change_events import Message, send
from support.registry_lab import RegistryLab, frame

from frazil.iceberg.catalog import dead_letters_name
from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.stack]

VALUE = record(("id", "long"), ("name", "string"), ("op", ["null", "string"]), name="Value")
KNOWN = {1: "c", 2: "R", 3: "u", 4: "Insert", 5: "UPDATE", 6: "d", 7: "DELETE"}
DETAIL = "op is none of c, r, u, insert, update, d, delete"
UNKNOWN = {11: "t", 12: "", 13: None, 14: " c", 15: "upsert", 16: "\u212a", 17: "\u0130NSERT"}


def begin(lab: Lab, convert: str, **table: object) -> None:
    """Write a stream file whose column `op` says what a change does."""
    columns = {"id": "long!", "name": "string", "op": "string"}
    key: dict[str, object] = {}
    if table:
        key = {"key": {"convert": "json", "columns": {"id": columns.pop("id")}}}
    options = {"name": lab.table, "mode": "upsert", "id_columns": ["id"], "cdc_field": "op"}
    lab.write_stream(
        value={"convert": convert, "columns": columns},
        table={**options, **table},
        order="kafka",
        errors={"max_bad_ratio": 1.0},
        **key,
    )


def write_messages(operations: dict[int, str | None], lab: RegistryLab | None) -> list[Message]:
    """Write a record for each operation, as JSON or, with a registry, as Avro."""
    schema_id = lab.register(json.dumps(VALUE)) if lab else 0
    values = [{"id": number, "name": f"n{number}", "op": op} for number, op in operations.items()]
    return [
        (
            json.dumps({"id": value["id"]}).encode(),
            frame(schema_id, encode(VALUE, value)) if lab else json.dumps(value).encode(),
        )
        for value in values
    ]


def read_both(lab: Lab, ingested: str) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Read the stream's rows, and reason and detail of the dead letters beside a table."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    rows = catalog.load_table(lab.table).scan().to_arrow().to_pylist()
    letters = []
    if ingested:
        found = catalog.load_table(dead_letters_name(ingested)).scan().to_arrow().to_pylist()
        letters = [(letter["reason"], letter["detail"]) for letter in found]
    catalog.close()
    return rows, letters


@pytest.mark.parametrize(
    ("convert", "tombstones", "workers_from"),
    [
        ("json", None, 10**9),
        ("json", None, 0),
        ("by_schema_id", None, 10**9),
        ("json", "delete", 10**9),
    ],
    ids=["json", "json by workers", "avro", "json with tombstones"],
)
def test_an_unknown_operation_is_a_dead_letter_and_merges_go_on(
    registry: RegistryLab, convert: str, tombstones: str | None, workers_from: int
) -> None:
    lab, limit = registry.lab, {MIN_RECORDS_VARIABLE: str(workers_from)}
    begin(lab, convert, **({"tombstones": tombstones} if tombstones else {}))
    by_registry = registry if convert == "by_schema_id" else None
    send(lab.stack.bootstrap, lab.topic, write_messages(KNOWN | UNKNOWN, by_registry))
    assert lab.frazil("run", lab.stream, **limit).code == 0
    last = write_messages({1: "d", 8: "c"}, by_registry)
    send(lab.stack.bootstrap, lab.topic, [*last, *([(b'{"id": 2}', None)] if tombstones else [])])

    done = lab.frazil("run", lab.stream, **limit)

    assert done.code == 0, done.err
    rows, letters = read_both(lab, f"{lab.table}__changes")
    assert sorted(row["id"] for row in rows) == [*([] if tombstones else [2]), 3, 4, 5, 8]
    assert letters == [("type_mismatch", DETAIL)] * len(UNKNOWN)
    assert lab.frazil("audit", lab.stream, "--values").code == 0


@pytest.mark.parametrize(
    ("mode", "workers_from", "tolerance"),
    [
        ("append", 10**9, "quarantine"),
        ("append", 10**9, "invalid_data"),
        ("upsert", 10**9, "quarantine"),
        ("upsert", 0, "quarantine"),
    ],
    ids=["append", "append and skip", "upsert", "upsert by workers"],
)
def test_a_decimal_too_low_for_its_partition_is_a_dead_letter(
    lab: Lab, mode: str, workers_from: int, tolerance: str
) -> None:
    lab.create_topic(partitions=1)
    columns = {"id": "long!", "price": "decimal(4,2)", "deep": "struct<cost: decimal(3,0)>"}
    partitions = ["truncate(price, 30)", "truncate(deep.cost, 7)"]
    table = {"name": lab.table, "mode": mode, "partition_by": partitions}
    lab.write_stream(
        value={"convert": "json", "columns": columns},
        table={**table, **({"id_columns": ["id"]} if mode == "upsert" else {})},
        order="kafka",
        errors={"tolerance": tolerance, "max_bad_ratio": 1.0},
    )
    good = [(-99.9, 0), (99.99, 999), (0, -994), (None, None)]
    bad = [(-99.91, 0), (-99.99, 0), (0, -995), (0, -999)]
    values = [
        {"id": number, "price": price, "deep": {"cost": cost}}
        for number, (price, cost) in enumerate(good + bad)
    ]
    send(lab.stack.bootstrap, lab.topic, [(b"", json.dumps(value).encode()) for value in values])

    done = lab.frazil("run", lab.stream, **{MIN_RECORDS_VARIABLE: str(workers_from)})

    assert done.code == 0, done.err
    ingested = f"{lab.table}__changes" if mode == "upsert" else lab.table
    rows, letters = read_both(lab, ingested if tolerance == "quarantine" else "")
    assert sorted(row["id"] for row in rows) == [*range(len(good))]
    details = [f"{name} is too low for a partition" for name in ("deep.cost", "price")]
    if tolerance == "quarantine":
        assert sorted(letters) == [("type_mismatch", text) for text in details for _ in range(2)]
    assert lab.frazil("audit", lab.stream, "--values").code == 0


@pytest.mark.parametrize(
    ("mode", "workers_from"),
    [("append", 10**9), ("append", 0), ("upsert", 0)],
    ids=["append", "append by workers", "upsert by workers"],
)
def test_a_whole_number_too_low_for_its_partition_is_a_dead_letter(
    lab: Lab, mode: str, workers_from: int
) -> None:
    lab.create_topic(partitions=1)
    table = {"name": lab.table, "mode": mode, "partition_by": ["truncate(n, 10)"]}
    lab.write_stream(
        value={"convert": "json", "columns": {"id": "long!", "n": "int", "big": "long"}},
        table={**table, **({"id_columns": ["id"]} if mode == "upsert" else {})},
        order="kafka",
        errors={"tolerance": "quarantine", "max_bad_ratio": 1.0},
    )
    numbers = [-(2**31) + 8, 2**31 - 1, None, -(2**31) + 7, -(2**31)]
    values = [{"id": at, "n": number, "big": -(2**63)} for at, number in enumerate(numbers)]
    send(lab.stack.bootstrap, lab.topic, [(b"", json.dumps(value).encode()) for value in values])

    done = lab.frazil("run", lab.stream, **{MIN_RECORDS_VARIABLE: str(workers_from)})

    assert done.code == 0, done.err
    rows, letters = read_both(lab, f"{lab.table}__changes" if mode == "upsert" else lab.table)
    assert sorted(row["id"] for row in rows) == [0, 1, 2]
    assert letters == [("type_mismatch", "n is too low for a partition")] * 2
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    found = catalog.load_table(lab.table).scan("n < 0").to_arrow()
    catalog.close()
    assert found["id"].to_pylist() == [0]
