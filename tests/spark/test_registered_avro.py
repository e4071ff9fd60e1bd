"""Avro by a schema registry: every schema of a batch in one pass, and nothing lost that waits."""

import json
from collections.abc import Iterator

import pytest
from avro_bytes import encode, record
from confluent_kafka.schema_registry import SchemaRegistryClient
from conftest import Lab
from faults.auditor import audit_table
from pyiceberg.catalog import load_catalog
from registry_lab import RegistryLab, frame

pytestmark = [pytest.mark.spark, pytest.mark.stack]

V1 = record(("id", "long"), ("name", ["null", "string"]))
V2 = record(("id", "long"), ("name", ["null", "string"]), ("city", "string"))


@pytest.fixture
def registry(lab: Lab) -> Iterator[RegistryLab]:
    """Open the stack's registry; the topic is there, the stream decodes by schema id."""
    with SchemaRegistryClient({"url": lab.stack.registry_url}) as client:
        made = RegistryLab(lab, client)
        lab.create_topic()
        made.write_stream()
        yield made


def rows(lab: Lab, name: str = "") -> list[dict[str, object]]:
    """Read the table, in the order of the topic."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    found = catalog.load_table(name or lab.table).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda r: (r["_kafka"]["offset"], r["_kafka"]["partition"]))


def assert_audited(lab: Lab) -> None:
    """Let the independent auditor recompute the table."""
    report = audit_table(
        lab.stack.catalog_properties, "lake", lab.table, lab.stack.bootstrap, lab.stream
    )
    assert report.findings == ()


def test_two_schemas_in_one_batch_are_decoded_in_one_pass(registry: RegistryLab) -> None:
    lab = registry.lab
    first, second = registry.register(json.dumps(V1)), registry.register(json.dumps(V2))
    registry.send(
        [
            frame(first, encode(V1, {"id": 1, "name": None})),
            frame(second, encode(V2, {"id": 2, "name": "", "city": "Rome"})),
        ]
    )

    lab.drain()

    got = [(r["id"], r["name"], r["city"], r["_kafka"]["schema_id"]) for r in rows(lab)]
    assert got == [(1, None, None, first), (2, "", "Rome", second)]
    newest = lab.frazil("snapshots", lab.stream, "--json").json[0]
    table = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)
    summary = table.snapshot_by_id(newest["snapshot_id"]).summary
    assert json.loads(summary["frazil.schema-ids"]) == [first, second]
    assert_audited(lab)


def test_what_does_not_decode_is_a_dead_letter_with_its_reason(registry: RegistryLab) -> None:
    lab = registry.lab
    known = registry.register(json.dumps(V1))
    good = encode(V1, {"id": 7, "name": "seven"})
    values = {
        "null_value": None,
        "empty_value": b"",
        "missing_schema_id": b'{"id": 1}',
        "malformed_avro": frame(known, good[:-2]),
        "malformed_avro ": frame(known, good + b"\x00"),
        "malformed_avro  ": frame(known, b""),
    }
    registry.send([frame(known, good)] * 8 + list(values.values()))

    lab.drain()

    letters = rows(lab, f"{lab.table}__dead_letters")
    found = {(bytes(r["value"]) if r["value"] is not None else None, r["reason"]) for r in letters}
    assert found == {(value, reason.strip()) for reason, value in values.items()}
    assert [r["id"] for r in rows(lab)] == [7] * 8
    assert_audited(lab)
