"""Erased dead letters that another tool brings back are noticed by maintenance."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from support.lake import Lake, Molds, make_stream
from support.log_lake import LogInMemory, Pipeline

from frazil.errors import ForeignRollbackError
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger import keys
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.maintenance.tables import iterate_maintained, read_base_table
from frazil.workspace import Workspace


@pytest.fixture
def lake(molds: Molds) -> Iterator[Lake]:
    """Begin a stream whose key is a column."""
    stream = make_stream(key={"convert": "string", "column": "customer"})
    with molds.begin(stream) as lake:
        yield lake


@pytest.fixture(autouse=True)
def letters(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> str:
    """Fill a table and its dead letters; return their table's name."""
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 0.1)
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    pipeline = Pipeline(lake, LogInMemory())
    pipeline.log.produce(0, *range(10))
    pipeline.ingest(letters=[(0, 4)])
    return lake.stream.dead_letters_table


def append_letter(lake: Lake, offset: int, key: bytes) -> int | None:
    """Append a dead letter; return the snapshot before it."""
    table = lake.store.load(lake.stream.dead_letters_table)
    head = table.current_snapshot()
    kafka = {"topic": "orders", "partition": 0, "offset": offset, "key": key}
    row = {"attempt": "abandoned", "value": b"secret", "_kafka": kafka}
    table.append(pa.Table.from_pylist([row], table.schema().as_arrow()))
    return head.snapshot_id if head else None


def erase_key(work: Workspace, key: str) -> int:
    request = ErasureRequest(
        stream="orders", keys=(key,), by="jane@example.org", reason="r", dry_run=False
    )
    return erase(work, plan_erasure(work, request), request).dead_letters


def maintain(work: Workspace) -> list[str]:
    base = read_base_table(work)
    assert base is not None
    return [view.name for view in iterate_maintained(work, base)]


def roll_back(lake: Lake, snapshot_id: int | None) -> None:
    assert snapshot_id is not None
    table = lake.store.load(lake.stream.dead_letters_table)
    table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


def find_head(lake: Lake) -> int:
    snapshot = lake.store.load(lake.stream.dead_letters_table).current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def test_a_rollback_of_dead_letters_over_an_erasure_halts_maintenance_until_they_are_erased_again(
    lake: Lake, work: Workspace, letters: str
) -> None:
    append_letter(lake, 4, b"alice")
    before = find_head(lake)
    assert erase_key(work, "_kafka.key=alice") == 1
    assert letters in maintain(work)
    roll_back(lake, before)

    with pytest.raises(ForeignRollbackError, match="1 erased dead letter can be read") as halted:
        maintain(work)

    assert "`frazil erase orders --key COLUMN=VALUE --by YOU" in halted.value.next_step
    assert erase_key(work, "_kafka.key=nobody") == 1
    assert letters in maintain(work)


def test_other_changes_of_the_dead_letters_halt_nothing(
    lake: Lake, work: Workspace, letters: str
) -> None:
    assert letters in maintain(work)  # nothing was erased
    before_letter = append_letter(lake, 4, b"alice")
    erase_key(work, "_kafka.key=alice")
    append_letter(lake, 5, b"bob")
    assert letters in maintain(work)

    roll_back(lake, before_letter)  # the erased letter is not back
    assert letters in maintain(work)


@pytest.mark.parametrize("way", ["expired", "dropped", "created again"])
def test_dead_letters_without_the_erasures_snapshot_halt_nothing(
    lake: Lake, work: Workspace, letters: str, way: str
) -> None:
    append_letter(lake, 4, b"alice")
    erase_key(work, "_kafka.key=alice")
    erased = int(lake.store.load(letters).properties[keys.LAST_ERASURE])
    if way == "expired":
        append_letter(lake, 5, b"bob")
        lake.store.load(letters).maintenance.expire_snapshots().by_id(erased).commit()
    else:
        lake.catalog.drop_table(letters)
    if way == "created again":
        ensure_dead_letters_table(lake.store, lake.stream.table.name)
        append_letter(lake, 4, b"alice")

    assert (letters in maintain(work)) is (way != "dropped")
