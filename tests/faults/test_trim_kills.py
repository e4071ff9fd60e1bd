"""Kill -9 at each commit of a trimming of a state table, three seeds each, and of a row expiry.

Whatever was killed, the next merge and the next run end with the rows that a dictionary folds.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from conftest import Lab
from pyiceberg.catalog import load_catalog
from support.change_events import Message, send
from support.seeded_changes import Topic, draw
from support.state_lake import age_tables

from faults import judges, tally
from faults.state_auditor import StateRules, audit_state_table
from frazil.streams.loading import load_stream

pytestmark = [pytest.mark.stack, pytest.mark.long]
SEEDS = (1, 2, 3)
CHANGES = ("delete.before-commit", "delete.after-commit", "trim.before-newest")
MEMORY = ("trim.after-changes", "remove.before-commit", "remove.after-commit")
STATE = ("state.before-commit", "state.after-commit")
NOW = datetime.now(UTC)


@dataclass
class History:
    """A stream with a state table whose changes or rows are limited in age."""

    lab: Lab
    topic: Topic = field(default_factory=Topic)

    @property
    def rules(self) -> StateRules:
        return StateRules(self.lab.stream, self.lab.table, ("id",), (), "op")

    def begin(self, at: str, **limits: object) -> None:
        """Begin the stream; `at` is the type of that column."""
        table = {"name": self.lab.table, "mode": "upsert", "id_columns": ["id"], "cdc_field": "op"}
        columns = {"id": "long!", "op": "string", "at": at, "name": "string"}
        self.lab.write_stream(
            value={"convert": "json", "columns": columns},
            table={**table, "partition_by": ["bucket(id, 2)"]},
            order="kafka",
            **limits,
        )
        self.lab.create_topic()

    def publish(self, changes: Iterable[tuple[int, Message]]) -> None:
        """Send changes, publish them, and merge."""
        drawn = [*changes]
        for partition in (0, 1):
            mine = [message for number, message in drawn if number == partition]
            send(self.lab.stack.bootstrap, self.lab.topic, mine, partition)
        self.must("run")

    def change(self, key: int, *names: str, at: int | str = 0) -> Iterator[tuple[int, Message]]:
        """Yield changes of a key; one that is named `d` deletes it."""
        for name in names:
            part, text = key % 2, None if name == "d" else name
            yield part, self.topic.send(key, "d" if name == "d" else "u", at, text, part)

    def must(self, command: str, *options: str) -> Mapping[str, object]:
        run = self.lab.frazil(command, self.lab.stream, *options, "--json")
        assert run.code == 0, run.out + run.err
        assert isinstance(run.json, dict)
        return run.json

    def expire(self) -> Mapping[str, object]:
        found = self.must("expire-rows", "--no-dry-run")["expire_rows"]
        assert isinstance(found, dict)
        return found

    def kill(self, failpoint: str) -> None:
        """Run the task until it is killed there."""
        options = (self.lab.stream, "--no-dry-run")
        killed = self.lab.frazil("expire-rows", *options, FRAZIL_FAILPOINT=failpoint)
        tally.counts[f"kill at {failpoint}"] += 1
        assert killed.code == -9, killed.out + killed.err

    def read(self, suffix: str = "") -> list[dict[str, object]]:
        with load_catalog("lake", **self.lab.stack.catalog_properties) as catalog:
            found = catalog.load_table(self.lab.table + suffix).scan().to_arrow().to_pylist()
            return list(found)

    def rows(self) -> dict[object, object]:
        """Let all audits look; return the name of each key."""
        tally.counts["tables judged"] += 1
        judges.assert_audited(self.lab, table=f"{self.lab.table}__changes")
        with load_catalog("lake", **self.lab.stack.catalog_properties) as catalog:
            assert audit_state_table(catalog, self.rules) == []
        own = self.lab.frazil("audit", self.lab.stream)
        assert own.code == 0, own.out + own.err
        tally.counts["tables that held"] += 1
        return {(row["id"],): row["name"] for row in self.read()}


@pytest.fixture
def history(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    return History(lab)


@pytest.mark.storm(1)
@pytest.mark.parametrize("failpoint", [*CHANGES, *MEMORY])
def test_a_killed_trimming_is_finished_and_revives_no_key(history: History, failpoint: str) -> None:
    history.begin("long", changes={"keep_days": 30})

    for seed in SEEDS:
        dice, own = random.Random(seed), 1_000 + seed
        drawn = [each for log in range(4) for each in draw(history.topic, dice, log, seed)]
        history.publish([*drawn, *history.change(own, "one", "two", "d")])
        age_tables(history.lab.folder, load_stream(history.lab.folder, history.lab.stream), 31)

        history.kill(failpoint)
        history.must("merge", *["--rebuild"] * (seed == 2))
        assert history.rows() == history.topic.rows
        history.expire()
        assert history.rows() == history.topic.rows
        assert own not in {row["id"] for row in history.read("__changes")}
        assert own not in {row["id"] for row in history.read("__deletes")}

    history.must("merge", "--rebuild")
    assert history.rows() == history.topic.rows
    assert history.expire()["trimmed"] == 0


@pytest.mark.storm(1)
@pytest.mark.parametrize("failpoint", [*CHANGES, "trim.after-changes", *STATE, *MEMORY[1:]])
def test_a_killed_expiry_is_finished_and_shows_no_older_row(
    history: History, failpoint: str
) -> None:
    rule = {"column": "at", "keep_days": 60}
    history.begin("timestamptz", maintenance={"expire_rows": rule})

    old, young = ((NOW - timedelta(days=days)).isoformat() for days in (90, 2))
    keys = random.sample(range(100), 6)
    history.publish(e for key in keys for e in history.change(key, "once", "d", at=young))
    kept, gone = [(key, "kept", young) for key in keys[3:]], [(key, "old", old) for key in keys[:3]]
    history.publish(e for key, name, at in (*kept, *gone) for e in history.change(key, name, at=at))

    history.kill(failpoint)
    history.must("merge")
    assert history.rows().items() <= history.topic.rows.items()
    history.expire()

    assert history.rows() == dict.fromkeys(((key,) for key in keys[3:]), "kept")
    assert {row["id"] for row in history.read("__changes")} == {*keys[3:]}
    assert {row["id"] for row in history.read("__deletes")}.isdisjoint(keys[:3])
    history.must("merge", "--rebuild")
    assert history.rows() == dict.fromkeys(((key,) for key in keys[3:]), "kept")
