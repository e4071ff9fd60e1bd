"""Change events become the source's table: what an event did not carry is filled from before."""

import random
import secrets
from pathlib import Path

import pytest
from conftest import Stack
from faults.state_auditor import StateRules, audit_state_table
from support.event_lake import EVENTS, Event, EventLake, Source
from support.state_lake import make_state_lake

from frazil.state_tables.state_audit import audit_state

pytestmark = pytest.mark.spark


@pytest.fixture
def name(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    return f"e{secrets.token_hex(4)}"


def make_lake(folder: Path, name: str, **table: object) -> EventLake:
    whole = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"], **table}
    return make_state_lake(EventLake, folder, name, **{**EVENTS, "table": whole})


def produce(lake: EventLake, events: list[Event]) -> None:
    """Produce events by key, so that the parts of a changed key reach different partitions."""
    for each in events:
        lake.produce(each.id % 2, each)


@pytest.mark.storm(1)
@pytest.mark.parametrize("part", range(6))
def test_the_state_is_the_source_table(name: str, tmp_path: Path, part: int) -> None:
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    lake, source = make_lake(tmp_path, name), Source(dice)
    ends = [0, 0]

    for _ in range(4):
        produce(lake, source.change(dice.randrange(1, 40)))
        if dice.random() < 0.3:
            produce(lake, source.repeat(8))
        if dice.random() < 0.2:
            produce(lake, source.snapshot())
        ends = [dice.randint(end, len(log)) for end, log in zip(ends, lake.log, strict=True)]
        lake.ingest(*ends)
        lake.merge()
        assert [*audit_state(lake.store, lake.stream)] == [], f"part {part}, seed {seed}"
    produce(lake, source.change(1))
    lake.ingest_all()
    merged = lake.merge()

    assert lake.values() == source.rows, f"part {part}, seed {seed}"
    assert merged.counts is not None
    assert merged.counts.is_balanced
    assert [*audit_state(lake.store, lake.stream)] == [], f"part {part}, seed {seed}"
    rules = StateRules(name, lake.state_name, ("id",), operation="_op", has_events=True)
    assert audit_state_table(lake.store.catalog, rules) == [], f"part {part}, seed {seed}"
