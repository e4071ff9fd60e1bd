"""A person lets a stream go on beside a newer schema: its records wait as letters, whole."""

import json
from typing import Any

import pytest
from conftest import Lab
from faults.judges import assert_audited
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.types import StringType
from support.avro_bytes import encode, record
from support.registry_lab import RegistryLab, frame, read_table

pytestmark = [pytest.mark.spark, pytest.mark.stack]

OLD = record(("id", "int"), ("name", ["null", "string"]))
NEW = record(("id", "int"), ("name", ["null", "string"]), ("city", "string"))
NEWEST = record(("id", "int"), ("name", ["null", "string"]), ("shop", ["null", "string"]))
NOBODY = json.dumps({"conn_type": "http", "host": "http://127.0.0.1:9"})
JANE = ("--by", "jane@example.org", "--reason", "not agreed yet")


@pytest.fixture
def waiting(registry: RegistryLab) -> RegistryLab:
    """Return a stream that waits for a person, with a record of each of two schemas."""
    send(registry, OLD, id=1, name="one")
    registry.lab.drain()
    registry.lab.write_stream(schema={"add_column": "review"}, errors={"max_bad_ratio": 0})
    send(registry, NEW, id=2, name="two", city="Bern")
    send(registry, OLD, id=3, name="three")
    assert "waits for a person's decision" in registry.lab.frazil("run", registry.lab.stream).err
    return registry


def send(registry: RegistryLab, schema: dict[str, Any], **values: object) -> None:
    """Register the schema as the newest and send a record of it."""
    registry.send([frame(registry.register(json.dumps(schema)), encode(schema, values))])


def load(lab: Lab) -> Table:
    return load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)


def answer(lab: Lab, choice: str) -> None:
    found = lab.frazil("review-schema", lab.stream, choice, *JANE)
    assert found.code == 0, found.err


def read_ids(lab: Lab) -> list[object]:
    return sorted(str(row["id"]) for row in read_table(lab))


def read_cities(lab: Lab) -> list[str]:
    return sorted(str(row["city"]) for row in read_table(lab))


def read_letters(lab: Lab) -> list[dict[str, Any]]:
    return read_table(lab, f"{lab.table}__dead_letters")


@pytest.mark.core
def test_the_stream_goes_on_and_what_was_put_aside_comes_back_whole(waiting: RegistryLab) -> None:
    lab = waiting.lab
    answer(lab, "--quarantine")
    answer(lab, "--quarantine")

    planned = lab.frazil("plan", lab.stream, "--json").json
    lab.drain()

    assert isinstance(planned, dict)
    assert planned["put_aside"] == ["city"]
    assert read_ids(lab) == ["1", "3"]
    [letter] = read_letters(lab)
    assert letter["reason"] == "schema_undecided"
    assert "add_column city: string" in letter["detail"]
    assert_audited(lab)
    assert "quarantine by jane@example.org" in lab.frazil("review-schema", lab.stream).out
    told = lab.frazil("timeline", "--stream", lab.stream, "--json").out
    assert told.count("quarantine: add_column city") == 1

    for command in (
        ("replay-dead-letters", lab.stream),
        ("replay-dead-letters", lab.stream, "--no-dry-run"),
        ("replay", lab.stream, "--offsets", f"{lab.topic}:0:0-1"),
        ("backfill", lab.stream, "--offsets", f"{lab.topic}:0:0-1"),
    ):
        refused = lab.frazil(*command)
        assert (refused.code, "quarantined by jane@example.org" in refused.err) == (1, True), (
            command
        )
    assert read_ids(lab) == ["1", "3"]

    answer(lab, "--accept")
    back = lab.frazil("replay-dead-letters", lab.stream, "--no-dry-run")

    assert back.code == 0, back.err
    rows = sorted((r["id"], r["city"]) for r in read_table(lab))
    assert rows == [(1, None), (2, "Bern"), (3, None)]
    assert_audited(lab)


def test_what_was_put_aside_stays_in_question_behind_yet_another_schema(
    waiting: RegistryLab,
) -> None:
    lab = waiting.lab
    answer(lab, "--quarantine")
    by_workers = lab.frazil("run", lab.stream, FRAZIL_DIRECT_MIN_RECORDS="1")
    assert by_workers.code == 0, by_workers.err
    watched = lab.frazil("status", lab.stream)
    assert "records quarantined until a schema review of" in " ".join(watched.out.split())
    send(waiting, NEWEST, id=4, name="four", shop="north")

    stopped = lab.frazil("run", lab.stream)
    assert (stopped.code, "add_column city: string; add_column shop: string" in stopped.err) == (
        1,
        True,
    ), stopped.err
    assert read_ids(lab) == ["1", "3"]
    answer(lab, "--accept")
    send(waiting, OLD, id=5, name="five")
    lab.drain()
    assert lab.frazil("replay-dead-letters", lab.stream, "--no-dry-run").code == 0

    rows = sorted((str(r["id"]), r["city"], r["shop"]) for r in read_table(lab))
    assert rows == [
        ("1", None, None),
        ("2", "Bern", None),
        ("3", None, None),
        ("4", None, "north"),
        ("5", None, None),
    ]
    assert_audited(lab)


def test_a_question_stays_though_the_newest_schema_no_longer_asks(waiting: RegistryLab) -> None:
    lab = waiting.lab
    waiting.register(json.dumps({**OLD, "doc": f"as before, {lab.stream}"}))

    still = lab.frazil("run", lab.stream)
    version = load(lab).metadata_location
    again = lab.frazil("run", lab.stream)
    deaf = lab.frazil("status", lab.stream, "--json", AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT=NOBODY)

    for run in (still, again):
        assert (run.code, "add_column city: string" in run.err) == (1, True), run.err
    assert load(lab).metadata_location == version
    assert '"cause": "registry_down"' in deaf.out
    answer(lab, "--accept")
    lab.drain()
    assert read_cities(lab) == ["Bern", "None", "None"]
    assert_audited(lab)


def test_a_question_ends_where_the_table_gets_the_column_by_other_ways(
    waiting: RegistryLab,
) -> None:
    lab = waiting.lab
    answer(lab, "--quarantine")
    lab.drain()
    lab.write_stream(schema={"add_column": "auto"})
    early = lab.frazil("replay-dead-letters", lab.stream, "--no-dry-run")
    assert (early.code, f"`frazil run {lab.stream}`" in early.err) == (1, True)
    with load(lab).update_schema() as change:
        change.add_column("city", StringType())

    lab.drain()

    assert not [name for name in load(lab).properties if name.startswith("frazil.schema-question")]
    assert lab.frazil("replay-dead-letters", lab.stream, "--no-dry-run").code == 0
    assert read_cities(lab) == ["Bern", "None", "None"]
    assert_audited(lab)


def test_a_later_no_stops_the_stream_and_brings_nothing_back(waiting: RegistryLab) -> None:
    lab = waiting.lab
    answer(lab, "--quarantine")
    lab.drain()
    answer(lab, "--stop")
    waiting.register(json.dumps({**OLD, "doc": f"as before, {lab.stream}"}))

    for command in (("run",), ("replay-dead-letters", "--no-dry-run")):
        stopped = lab.frazil(command[0], lab.stream, *command[1:])
        assert (stopped.code, "jane@example.org stopped the stream" in stopped.err) == (1, True)

    assert read_ids(lab) == ["1", "3"]
    assert len(read_letters(lab)) == 1


def test_an_answer_that_nothing_could_keep_is_refused_also_after_it_was_given(
    waiting: RegistryLab,
) -> None:
    lab = waiting.lab
    before = dict(lab.document)
    kept_by_nobody = {
        "errors.tolerance is all": {"errors": {"tolerance": "all"}},
        "values have no schema id": {"value": {"convert": "by_latest_schema"}},
    }
    both = lab.frazil("review-schema", lab.stream, "--accept", "--quarantine", *JANE)
    assert (both.code, "exclude each other" in both.err) == (1, True)
    for why, changes in kept_by_nobody.items():
        lab.write_stream(**changes)
        refused = lab.frazil("review-schema", lab.stream, "--quarantine", *JANE)
        assert (refused.code, why in refused.err) == (1, True), refused.err
        lab.write_stream(**before)
    answer(lab, "--quarantine")

    for changes in kept_by_nobody.values():
        lab.write_stream(**changes)
        waits = lab.frazil("run", lab.stream)
        assert (waits.code, "waits for a person's decision" in waits.err) == (1, True), waits.err
        lab.write_stream(**before)

    assert read_ids(lab) == ["1"]


@pytest.mark.parametrize("policy", ["auto", "review"])
def test_a_schema_that_was_never_the_newest_at_a_plan_is_asked_about_when_a_batch_meets_it(
    registry: RegistryLab, policy: str
) -> None:
    lab = registry.lab
    send(registry, OLD, id=1, name="one")
    lab.drain()
    lab.write_stream(schema={"add_column": policy})
    send(registry, NEW, id=2, name="two", city="Bern")
    registry.register(json.dumps({**OLD, "doc": f"without city again, {lab.stream}"}))

    met = lab.frazil("run", lab.stream)

    assert (met.code, "requires add_column city: string" in met.err) == (1, True), met.err
    assert read_ids(lab) == ["1"]
    if policy == "review":
        asked = lab.frazil("run", lab.stream)
        assert (asked.code, "waits for a person's decision" in asked.err) == (1, True), asked.err
        answer(lab, "--accept")
    lab.drain()
    assert read_cities(lab) == ["Bern", "None"]
    assert not [name for name in load(lab).properties if name.startswith("frazil.schema-question")]
    assert_audited(lab)
