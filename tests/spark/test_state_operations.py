"""Operations on a real state table, one after the other: after each one both audits look."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from conftest import Lab
from faults.auditor import audit_table
from faults.state_auditor import StateRules, audit_state_table, find_position
from pyiceberg.catalog import load_catalog

pytestmark = [pytest.mark.stack, pytest.mark.long]
COLUMNS = {"id": "long!", "op": "string", "at": "timestamptz!", "name": "string", "rank": "int"}
NOW = datetime.now(UTC)


@dataclass
class Walk:
    """A stream with a state table, and the ends of its topic."""

    lab: Lab
    ends: list[int] = field(default_factory=lambda: [0, 0])

    def send(
        self, key: int, op: str, days_ago: int, name: str | None = None, rank: int = 1
    ) -> None:
        """Send a change of a key; a key keeps its partition."""
        at = (NOW - timedelta(days=days_ago)).isoformat()
        value = {"id": key, "op": op, "at": at, "name": name, "rank": rank}
        producer = Producer({"bootstrap.servers": self.lab.stack.bootstrap})
        key_text, place = str(key).encode(), key % 2
        producer.produce(self.lab.topic, json.dumps(value).encode(), key_text, partition=place)
        assert producer.flush(30) == 0
        self.ends[place] += 1

    def do(self, command: str, *arguments: str) -> Mapping[str, object]:
        """Do an operation; give its answer."""
        run = self.lab.frazil(command, self.lab.stream, *arguments, "--json")
        assert run.code == 0, run.out + run.err
        assert isinstance(run.json, Mapping)
        return run.json

    def read(self, suffix: str = "") -> list[dict[str, object]]:
        """Read the rows of one of the stream's tables."""
        with load_catalog("lake", **self.lab.stack.catalog_properties) as catalog:
            found = catalog.load_table(self.lab.table + suffix).scan().to_arrow().to_pylist()
            return list(found)

    def count(self) -> Mapping[str, int]:
        """Return what became of the changes of the newest merge."""
        rules = StateRules(self.lab.stream, self.lab.table, ("id",), ("at",), "op")
        with load_catalog("lake", **self.lab.stack.catalog_properties) as catalog:
            position = find_position(catalog.load_table(self.lab.table), rules)
        assert position is not None
        counts: Mapping[str, int] = position["counts"]
        return counts

    def merge(self, *options: str) -> tuple[str, dict[int, str | None]]:
        """Merge; let both audits look; tell why all changes were folded, and the rows."""
        merged = self.do("merge", *options)
        stack, stream, table = self.lab.stack, self.lab.stream, self.lab.table
        properties, changes = stack.catalog_properties, f"{table}__changes"
        report = audit_table(properties, "lake", changes, stack.bootstrap, stream)
        assert not report.findings, report.findings
        with load_catalog("lake", **properties) as catalog:
            rules = StateRules(stream, table, ("id",), ("at",), "op")
            assert audit_state_table(catalog, rules) == []
            rows = catalog.load_table(table).scan().to_arrow().to_pylist()
        own = self.lab.frazil("audit", stream)
        assert own.code == 0, own.out + own.err
        return str(merged["rebuilt"]), {row["id"]: row["name"] for row in rows}


@pytest.fixture
def walk(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """Begin behind two records, and publish changes of four keys."""
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    table = {"name": lab.table, "mode": "upsert", "id_columns": ["id"], "cdc_field": "op"}
    lab.write_stream(
        source={"topic": lab.topic, "start": "latest"},
        value={"convert": "json", "columns": COLUMNS},
        table={**table, "partition_by": ["bucket(id, 2)"]},
        order={"sequence_by": ["at"]},
        errors={"max_bad_ratio": 1.0},
    )
    lab.create_topic()
    made = Walk(lab)
    made.send(90, "c", 99, "older")
    made.send(1, "c", 98, "before")
    made.do("run")
    for key in range(1, 5):
        made.send(key, "c", 50 - key, f"first {key}")
    made.send(4, "d", 40)
    made.do("run")
    return made


def test_the_state_is_right_after_batch_backfill_redrive_and_replay(walk: Walk) -> None:
    topic = walk.lab.topic
    assert walk.merge() == ("", {1: "first 1", 2: "first 2", 3: "first 3"})

    walk.do(
        "backfill", "--offsets", f"{topic}:0:0-1", "--offsets", f"{topic}:1:0-1", "--no-dry-run"
    )
    reason, rows = walk.merge()
    assert "backfill snapshot" in reason
    assert rows == {90: "older", 1: "first 1", 2: "first 2", 3: "first 3"}

    walk.send(2, "u", 30, "large", rank=3_000_000_000)
    walk.send(1, "u", 29, "second")
    walk.do("run")
    walk.lab.write_stream(value={"convert": "json", "columns": {**COLUMNS, "rank": "long"}})
    walk.send(3, "u", 28, "third")
    walk.do("run")
    walk.do("replay-dead-letters", "--no-dry-run")
    reason, rows = walk.merge()
    assert (reason, rows[2], rows[1]) == ("", "large", "second")

    walk.do("replay", "--offsets", f"{topic}:0:1-2", "--no-dry-run")
    reason, after = walk.merge()
    assert (after, "replay snapshot" in reason) == (rows, True)


def test_expired_keys_leave_with_all_their_changes_and_come_back_as_new(walk: Walk) -> None:
    walk.send(5, "c", 90, "old")
    walk.send(5, "u", 80, "older than it looks")
    walk.send(6, "c", 85, "once")
    walk.send(6, "d", 84)
    walk.send(7, "c", 90, "deleted long ago")
    walk.send(7, "d", 84)
    walk.do("run")
    walk.send(6, "u", 83, "again")
    walk.send(8, "c", 70, "old")
    walk.send(8, "u", 10, "young")
    walk.do("run")
    expired, rows = {5, 6, 7}, walk.merge()[1]
    rule = {"column": "at", "keep_days": 60}
    walk.lab.write_stream(maintenance={"expire_rows": rule})

    report = walk.do("expire-rows", "--no-dry-run")["expire_rows"]

    assert isinstance(report, Mapping)
    assert report["rows"] == 3
    kept = {key: name for key, name in rows.items() if key not in expired}
    assert walk.merge() == ("", kept)
    for suffix in ("__changes", "__deletes"):
        assert expired.isdisjoint(row["id"] for row in walk.read(suffix))
    assert {row["name"] for row in walk.read("__changes") if row["id"] == 8} == {"old", "young"}
    assert {row["id"] for row in walk.read("__deletes")} == {4}
    assert walk.merge("--rebuild") == ("by request", kept)

    walk.send(5, "u", 1, "back")
    walk.do("run")
    assert walk.count()["inserted"] == walk.count()["changes"] == 1
    assert walk.merge() == ("", {**kept, 5: "back"})
