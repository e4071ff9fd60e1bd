"""A newer registered schema changes the table by the stream's policy, before anything is staged."""

import json

import pytest
from conftest import Lab
from faults.judges import assert_audited
from pyiceberg.catalog import load_catalog
from support.avro_bytes import encode, record
from support.registry_lab import RegistryLab, frame, read_table

pytestmark = [pytest.mark.spark, pytest.mark.stack]

OLD = record(("id", "int"), ("name", ["null", "string"]))
NEW = record(("id", "long"), ("city", "string"))


@pytest.fixture
def begun(registry: RegistryLab) -> RegistryLab:
    """Return a stream whose table was made by the old schema and holds one of its records."""
    old = registry.register(json.dumps(OLD))
    registry.send([frame(old, encode(OLD, {"id": 1, "name": "one"}))])
    registry.lab.drain()
    return registry


def send_both(registry: RegistryLab) -> None:
    """Send a record of either schema, that of the new one first."""
    old, new = registry.register(json.dumps(OLD)), registry.register(json.dumps(NEW))
    registry.send(
        [
            frame(new, encode(NEW, {"id": 2**40, "city": "Bern"})),
            frame(old, encode(OLD, {"id": 3, "name": "three"})),
        ]
    )


def read_rows(lab: Lab) -> list[tuple[object, ...]]:
    rows = [(r["id"], r["name"], r["city"]) for r in read_table(lab)]
    return sorted(rows, key=str)


def list_authors(lab: Lab) -> list[str]:
    """Name who decided each recorded change of the table."""
    table = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)
    found = [t for n, t in table.properties.items() if n.startswith("frazil.schema-change.")]
    return [json.loads(text)["by"] for text in found]


ALL = [(1, "one", None), (1099511627776, None, "Bern"), (3, "three", None)]


def test_e13_the_record_that_brings_the_new_schema_is_in_the_table_with_its_new_field(
    begun: RegistryLab,
) -> None:
    send_both(begun)

    begun.lab.drain()

    assert read_rows(begun.lab) == ALL
    assert list_authors(begun.lab) == ["policy"]
    assert_audited(begun.lab)


def test_e13_where_a_person_decides_the_record_waits_and_comes_with_its_new_field(
    begun: RegistryLab,
) -> None:
    lab = begun.lab
    lab.write_stream(schema={"add_column": "review"})
    send_both(begun)

    waiting = lab.frazil("run", lab.stream)
    watched = lab.frazil("status", lab.stream, "--json").json
    accepted = lab.frazil(
        "review-schema", lab.stream, "--accept", "--by", "jane@example.org", "--reason", "agreed"
    )
    lab.drain()

    assert (waiting.code, "add_column city: string" in waiting.err) == (1, True)
    assert isinstance(watched, list)
    assert watched[0]["state"] == "review"
    assert accepted.code == 0, accepted.err
    assert read_rows(lab) == ALL
    assert list_authors(lab) == ["jane@example.org"]
    assert_audited(lab)


CASE = record(("ID", "int"), ("name", ["null", "string"]))


def send_other_case(registry: RegistryLab) -> None:
    """Send a record whose schema names the column `id` in capitals, then one of the old schema."""
    old, new = registry.register(json.dumps(OLD)), registry.register(json.dumps(CASE))
    registry.send(
        [
            frame(new, encode(CASE, {"ID": 2, "name": "two"})),
            frame(old, encode(OLD, {"id": 3, "name": "three"})),
        ]
    )


def test_e11_a_new_name_that_differs_only_in_case_stops_with_the_schema_and_both_names(
    begun: RegistryLab,
) -> None:
    send_other_case(begun)

    waiting = begun.lab.frazil("run", begun.lab.stream)

    assert waiting.code == 1
    assert "'id' and 'ID' differ only in case" in waiting.err
    assert "`schema: {other: quarantine}`" in waiting.err
    assert [row["id"] for row in read_table(begun.lab)] == [1]


def test_e11_with_quarantine_only_the_records_of_that_schema_are_dead_letters(
    begun: RegistryLab,
) -> None:
    begun.lab.write_stream(schema={"other": "quarantine"})
    send_other_case(begun)

    begun.lab.drain()

    assert sorted(row["id"] for row in read_table(begun.lab)) == [1, 3]
    assert_audited(begun.lab)
