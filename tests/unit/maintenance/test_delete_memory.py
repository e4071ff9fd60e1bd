"""Recorded deletes of memories that no snapshot names any more are counted, then removed."""

from pathlib import Path

import pytest
from support.lake import append
from support.state_lake import Change, StateLake, make_state_lake

from frazil.maintenance.delete_memory import forget_memories
from frazil.state_tables.messages import MergeCounts
from frazil.workspace import Workspace

COUNTS = MergeCounts(changes=4, inserted=0, updated=0, deleted=0, absent=4, superseded=0, stale=0)


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    """Record two deletes in the memory that the state names, and three in two older ones."""
    lake = make_state_lake(StateLake, tmp_path, "orders")
    lake.produce(0, *(Change(n, "d", 1) for n in range(4)))
    lake.ingest_all()
    position = lake.position(COUNTS)
    lake.put_state([], position)
    memories = [position.memory, "older", "older", position.memory, "oldest"]
    rows = [
        {
            "id": n,
            "_sequence": {"s0": 1},
            "_kafka": {"topic": "orders", "partition": 0, "offset": n},
            "memory": memory,
        }
        for n, memory in enumerate(memories)
    ]
    append(lake.catalog, lake.store.load(f"{lake.state_name}__deletes"), rows)
    work = Workspace(lake.stream, tmp_path, "forget")
    vars(work)["store"] = lake.store
    return work


def test_memories_that_nothing_names_are_counted_and_removed(work: Workspace) -> None:
    memory = work.store.load("states.orders__deletes")

    assert forget_memories(work, dry_run=True) == 3
    assert memory.refresh().scan().count() == 5
    assert forget_memories(work) == 3
    assert sorted(memory.refresh().scan().to_arrow()["id"].to_pylist()) == [0, 3]
    assert forget_memories(work) == 0
