"""A stream with a state table: PyIceberg writes its changes; in the stack Spark merges them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import yaml
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from support.lake import Lake, append
from support.stack_lake import StackLake, let_days_pass

from frazil.iceberg.branches import create_branch, name_branch
from frazil.iceberg.commits import MAIN, build_append, commit, require_head, set_branch
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ingest.messages import BatchPlan, PartitionCount, Staged
from frazil.ledger import keys
from frazil.ledger.offsets import iterate_ranges
from frazil.state_tables.merge import merge_changes
from frazil.state_tables.merge_rules import hash_rules
from frazil.state_tables.messages import MergeCounts, Merged, MergePosition
from frazil.state_tables.tables import ensure_state_table
from frazil.streams.models import Stream
from frazil.workspace import Workspace

BAD = "!"
"""The operation of a record that becomes a dead letter."""
BIRTH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Change:
    """A record: `at` is the sequence, `op` one of Debezium's letters."""

    id: int
    op: str
    at: int
    name: str | None = None


Order = Callable[[Change, int, int], tuple[int, ...]]


def by_offset(_change: Change, _partition: int, offset: int) -> tuple[int, ...]:
    return (offset,)


def by_sequence(change: Change, partition: int, offset: int) -> tuple[int, ...]:
    return (change.at, partition, offset)


@dataclass(frozen=True)
class StateLake(Lake):
    """A stream of a test's own whose records are given; `log` holds them by partition."""

    log: tuple[list[Change], ...] = field(default_factory=lambda: ([], []))

    def produce(self, partition: int, *changes: Change) -> None:
        self.log[partition].extend(changes)

    def stage(self, plan: BatchPlan) -> Staged:
        """Stage the records of the plan, as Spark would."""
        branch = name_branch(plan.stream, plan.base_epoch)
        base_head = create_branch(self.store, plan.table, branch)
        read = [
            (change, {"topic": topic, "partition": number, "offset": offset})
            for topic, number, span in iterate_ranges(plan.offset_ranges)
            for offset, change in enumerate(self.log[number])
            if span.start <= offset < span.end
        ]
        rows = [self.make_row(change, place) for change, place in read if change.op != BAD]
        letters = [{"attempt": branch, "_kafka": place} for each, place in read if each.op == BAD]
        if letters:
            ensure_dead_letters_table(self.store, plan.table)
            append(self.catalog, self.store.load(self.stream.dead_letters_table), letters)
        table = self.table
        append(
            self.catalog,
            table,
            pa.Table.from_pylist(rows, schema=table.schema().as_arrow()),
            branch,
        )
        places = [letter["_kafka"] for letter in letters]
        counts = tuple(
            PartitionCount(topic=topic, partition=p, rows_read=r.width, rows_good=r.width - bad)
            for topic, p, r in iterate_ranges(plan.offset_ranges)
            for bad in [sum(place["partition"] == p for place in places)]
        )
        return Staged(
            stream=plan.stream,
            batch_id=plan.batch_id,
            attempt=branch,
            snapshot_id=self.table.metadata.refs[branch].snapshot_id,
            base_head=base_head,
            rows_read=len(read),
            rows_written=len(rows),
            rows_quarantined=len(letters),
            rows_skipped=0,
            partitions=counts,
        )

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        """Make the row of a change at a place."""
        return {
            "id": change.id,
            "op": change.op,
            "at": change.at,
            "name": change.name,
            "_kafka": {**place, "timestamp": BIRTH},
        }

    def position(self, counts: MergeCounts) -> MergePosition:
        """Return the position of a merge that has folded all changes."""
        assert self.history.head is not None
        return MergePosition(
            snapshot_id=self.history.head,
            table_uuid=self.history.table_uuid,
            rules=hash_rules(self.stream),
            id_columns=self.stream.table.id_columns,
            memory="m",
            counts=counts,
        )

    def ingest_all(self) -> None:
        """Publish everything that was produced."""
        self.ingest(*map(len, self.log))

    @property
    def state_name(self) -> str:
        state = self.stream.table.state
        assert state is not None
        return state.name

    def rows(self) -> dict[int, tuple[str | None, int, int]]:
        """Read the state: key → name, partition and offset of the winner; keys are unique."""
        found = self.store.load(self.state_name).scan().to_arrow().to_pylist()
        rows = {
            row["id"]: (row["name"], row["_kafka"]["partition"], row["_kafka"]["offset"])
            for row in found
        }
        assert len(rows) == len(found)
        return rows

    def expected(self, order: Order) -> dict[int, tuple[str | None, int, int]]:
        """Fold the whole log by a dictionary, as a reader would define the state."""
        newest: dict[int, tuple[tuple[int, ...], int, int]] = {}
        for number, changes in enumerate(self.log):
            for offset, change in enumerate(changes):
                known = newest.get(change.id)
                place = order(change, number, offset)
                if known is None or place > known[0]:
                    newest[change.id] = (place, number, offset)
        return {
            key: (self.log[number][offset].name, number, offset)
            for key, (_, number, offset) in newest.items()
            if self.log[number][offset].op.lower() not in {"d", "delete"}
        }

    def put_state(self, rows: list[dict[str, object]], position: MergePosition) -> None:
        """Add rows to the state by PyIceberg, as if a merge had written them."""
        work = Workspace(self.stream, self.folder, "test")
        vars(work)["store"] = self.store
        ensure_state_table(work, TableView(work.store, self.state_name), self.table.schema())
        table = self.store.load(self.state_name)
        arrow = pa.Table.from_pylist(rows, schema=table.schema().as_arrow())
        files = list(_dataframe_to_data_files(table.metadata, arrow, table.io)) if rows else []
        key = keys.merge_key(self.stream.stream)
        summary = {keys.KIND: keys.MERGE, key: position.encode()}
        added = build_append(table, summary, files)
        head = table.current_snapshot()
        required = require_head(table, MAIN, head and head.snapshot_id)
        moved = set_branch(MAIN, added.snapshot.snapshot_id)
        commit(self.catalog, table, required, [added, moved])


def age_tables(folder: Path, stream: Stream, days: float) -> None:
    """Set back the instants of a stream's three tables in the embedded stack's catalog."""
    state = stream.table.state
    assert state is not None
    for name in (stream.table.name, state.name, state.deletes_name):
        table = stream.table.model_copy(update={"name": name})
        let_days_pass(StackStateLake(folder, stream.model_copy(update={"table": table})), days)


class StackStateLake(StateLake):
    """The same in the embedded stack's catalog."""

    store = StackLake.store

    @property
    def work(self) -> Workspace:
        return Workspace(self.stream, self.folder, "test")

    def merge(self, *, rebuild: bool = False) -> Merged:
        return merge_changes(self.work, rebuild=rebuild)


Made = TypeVar("Made", bound=StateLake)


def make_state_lake(kind: type[Made], folder: Path, name: str, **sections: object) -> Made:
    """Begin a stream with a state table; sections replace those of the same name."""
    table = {
        "name": f"states.{name}",
        "mode": "upsert",
        "id_columns": ["id"],
        "cdc_field": "op",
        "partition_by": ["bucket(id, 2)"] if kind is StackStateLake else [],  # PyIceberg cannot
    }
    document: dict[str, object] = {
        "stream": name,
        "owner": "tests@example.org",
        "source": {"topic": "orders"},
        "value": {"columns": {"id": "long!", "op": "string", "at": "long!", "name": "string"}},
        "order": {"sequence_by": ["at"]},
        "table": table,
        **sections,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    stream = Stream.model_validate(document)
    lake = kind(folder, stream)
    lake.begin()
    return lake
