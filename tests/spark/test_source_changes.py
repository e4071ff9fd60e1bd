"""Change events of a table whose columns change, in each format: the state is the source."""

from collections.abc import Mapping
from typing import Any

import pytest
from conftest import Lab
from pyiceberg.catalog import load_catalog
from support.change_events import (
    EventWriter,
    Row,
    Types,
    send,
    write_avro_events,
    write_json_event,
)
from support.registry_lab import RegistryLab

pytestmark = [pytest.mark.spark, pytest.mark.stack]

TYPES = {"id": "int64", "name": "string", "n": "int32"}
COLUMNS = {"id": "long!", "name": "string", "n": "int"}
REASONS = ("--by", "ann@example.org", "--reason", "agreed")


class Captured:
    """A stream of a table whose events are written in one format."""

    def __init__(self, registry: RegistryLab, convert: str, **value: object) -> None:
        """Write the stream file, whose key comes from the events."""
        self.lab = registry.lab
        self.value = {"convert": convert, "transform": "flatten_debezium", **value}
        self.write: EventWriter = write_json_event
        if convert == "by_schema_id":
            self.write = write_avro_events(lambda text, part: registry.register(text, part=part))
        self.sent = 0
        self.declare(COLUMNS)

    def declare(self, columns: Mapping[str, str]) -> None:
        table = {"name": self.lab.table, "mode": "upsert", "id_columns": "_from_debezium_key_"}
        given = {name: kind.removesuffix("!") for name, kind in columns.items()}
        self.lab.write_stream(
            value={**self.value, "columns": given},
            table=table,
            order="kafka",
            errors={"max_bad_ratio": 1.0},
        )

    def change(self, op: str, types: Types, **row: object) -> None:
        """Send an event and let it be merged."""
        send(self.lab.stack.bootstrap, self.lab.topic, [self.write(op, types, row)])
        self.sent += 1
        self.lab.drain()

    def replay(self) -> None:
        """Read every record again, and merge."""
        offsets = f"{self.lab.topic}:0:0-{self.sent}"
        run_well(self.lab, "replay", self.lab.stream, "--offsets", offsets, "--no-dry-run")
        run_well(self.lab, "merge", self.lab.stream)

    def read(self) -> dict[int, Row]:
        """Read the state; keys are unique."""
        catalog = load_catalog("lake", **self.lab.stack.catalog_properties)
        rows: list[dict[str, Any]] = (
            catalog.load_table(self.lab.table).scan().to_arrow().to_pylist()
        )
        catalog.close()
        found = {
            row["id"]: {n: v for n, v in row.items() if n not in {"id", "_kafka", "_source"}}
            for row in rows
        }
        assert len(found) == len(rows)
        return found


def run_well(lab: Lab, *command: str) -> str:
    run = lab.frazil(*command)
    assert run.code == 0, run.out + run.err
    return run.out


@pytest.fixture(params=["json", "by_schema_id"])
def convert(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.long
def test_columns_that_the_source_adds_drops_renames_and_changes(
    registry: RegistryLab, convert: str
) -> None:
    captured = Captured(registry, convert)
    lab = captured.lab
    captured.change("c", TYPES, id=1, name="one", n=1)
    captured.change("c", TYPES, id=2, name="two", n=2)

    added = {**TYPES, "city": "string"}
    captured.change("u", added, id=1, name="one", n=1, city="Rome")
    assert "city" in run_well(lab, "status", lab.stream)
    captured.declare({**COLUMNS, "city": "string"})
    captured.change("u", added, id=2, name="two", n=2, city="Oslo")
    assert captured.read()[1]["city"] is None
    captured.replay()
    assert {key: row["city"] for key, row in captured.read().items()} == {1: "Rome", 2: "Oslo"}

    dropped = {"id": "int64", "n": "int32", "city": "string"}
    captured.change("u", dropped, id=1, n=1, city="Rome")
    renamed = {"id": "int64", "n": "int32", "town": "string"}
    captured.declare({**COLUMNS, "city": "string", "town": "string"})
    captured.change("u", renamed, id=2, n=2, town="Oslo")
    assert captured.read() == {
        1: {"name": None, "n": 1, "city": "Rome", "town": None},
        2: {"name": None, "n": 2, "city": None, "town": "Oslo"},
    }

    wider = {**renamed, "n": "int64"}
    captured.change("u", wider, id=1, n=2**40, town="Rome")
    assert captured.read()[1]["n"] == 1
    captured.declare({**COLUMNS, "n": "long", "city": "string", "town": "string"})
    run_well(lab, "run", lab.stream)  # widens the column, without new records
    run_well(lab, "replay-dead-letters", lab.stream, "--no-dry-run")
    run_well(lab, "merge", lab.stream)
    assert captured.read()[1] == {"name": None, "n": 2**40, "city": None, "town": "Rome"}

    captured.declare({**COLUMNS, "n": "string", "city": "string", "town": "string"})
    waiting = lab.frazil("run", lab.stream)
    assert waiting.code == 1
    assert "n" in waiting.err
    run_well(lab, "review-schema", lab.stream, "--accept", *REASONS)
    captured.change("u", {**renamed, "n": "string"}, id=2, n="many", town="Oslo")
    captured.change("d", renamed, id=1)
    [row] = captured.read().values()
    [replaced] = set(row) - {"name", "n", "city", "town"}  # as in the table of changes
    assert row == {"name": None, "n": "many", replaced: None, "city": None, "town": "Oslo"}
    run_well(lab, "audit", lab.stream)


def test_what_no_column_names_is_kept_until_a_replay_moves_it(
    registry: RegistryLab, convert: str
) -> None:
    captured = Captured(registry, convert, rest="others")
    added = {**TYPES, "city": "string", "zip": "int32"}
    captured.change("c", TYPES, id=1, name="one", n=1)
    captured.change("c", added, id=2, name="two", n=2, city="Oslo", zip=150)
    before = captured.read()

    captured.declare({**COLUMNS, "city": "string"})
    captured.change("u", added, id=1, name="one", n=1, city="Rome", zip=None)
    middle = captured.read()
    captured.replay()

    kept = {key: row["others"] for key, row in before.items()}
    assert kept == {1: None, 2: '{"city":"Oslo","zip":150}'}
    assert middle[2] == {**before[2], "city": None}
    assert captured.read() == {
        1: {"name": "one", "n": 1, "city": "Rome", "others": '{"zip":null}'},
        2: {"name": "two", "n": 2, "city": "Oslo", "others": '{"zip":150}'},
    }
    run_well(captured.lab, "audit", captured.lab.stream)
