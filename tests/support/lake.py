"""A real lake for tests: PyIceberg on a temporary SQLite catalog, filled as Frazil fills it.

Only Spark is left out: PyIceberg's own append writes the staged rows, to a branch that Frazil made.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

import pyarrow as pa
import stamina
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from support.scripted_catalog import ScriptedCatalog

from frazil.connections.clients import CatalogPreset
from frazil.iceberg.branches import create_branch, name_branch
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.commit_retry import MAX_ATTEMPTS
from frazil.iceberg.commits import (
    MAIN,
    build_append,
    commit,
    is_definite_conflict,
    require_head,
    set_branch,
)
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.iceberg.table_view import TableView
from frazil.ingest.bootstrap import new_table
from frazil.ingest.messages import BatchPlan, PartitionCount, Staged, Verdict
from frazil.ingest.planning import PlanInput, TableFacts, plan_batch
from frazil.ingest.publishing import Marker, publish_batch, publish_marker
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.offsets import NextOffsets, iterate_ranges
from frazil.ledger.recovery_point import (
    History,
    PublishedBatch,
    RecoveryPoint,
    find_recovery_point,
    keys,
)
from frazil.ledger.state import StreamState
from frazil.streams.models import Stream

Row = Mapping[str, object]
Made = TypeVar("Made")

TOPIC_ID = "topic-id-1"
CLUSTER_ID = "cluster-1"


def append(catalog: Catalog, table: Table, rows: pa.Table | list[Row], branch: str = MAIN) -> None:
    """Append rows as another writer does, who tries again where somebody was faster.

    PyIceberg's own `append()` copies the metadata 30 times on the way, and leaves the error of a
    sequence number that was taken to its caller.
    """
    if isinstance(rows, list):
        rows = pa.Table.from_pylist(rows, table.schema().as_arrow())
    files = list(_dataframe_to_data_files(table.metadata, rows, table.io)) if rows.num_rows else []
    for turn in stamina.retry_context(on=is_definite_conflict, wait_initial=0.05, timeout=None):
        with turn:
            table = catalog.load_table(table.name())
            added = build_append(table, {}, files, branch)
            head = table.snapshot_by_name(branch)
            required = require_head(table, branch, head and head.snapshot_id)
            moved = set_branch(branch, added.snapshot.snapshot_id)
            commit(catalog, table, required, [added, moved])


def make_stream(name: str = "orders", **sections: object) -> Stream:
    """Make a small valid stream; sections replace those of the same name."""
    plain: dict[str, object] = {
        "stream": name,
        "owner": "data-platform@example.org",
        "source": {"topic": name},
        "value": {"columns": {"id": "long!", "name": "string"}},
        "table": {"name": "demo.orders"},
    }
    return Stream.model_validate(plain | sections)


def make_topic(ends: tuple[int, ...], topic: str = "orders", earliest: int = 0) -> TopicFacts:
    """Describe a topic as Kafka would."""
    offsets = tuple(PartitionOffsets(earliest, end) for end in ends)
    return TopicFacts(topic, TOPIC_ID, CLUSTER_ID, offsets)


def make_state(
    offsets: NextOffsets | None = None, epoch: int = 0, batch: str = "base"
) -> StreamState:
    """Make the state of a stream that reads one topic."""
    return StreamState(
        epoch, batch, offsets or {"orders": (0, 0)}, {"orders": TOPIC_ID}, CLUSTER_ID
    )


def load_with_history(store: TableStore, name: str) -> tuple[Table, History]:
    view = TableView(store, name)
    return view.table, view.history


@dataclass(frozen=True)
class Lake:
    """A catalog on disk and one stream that fills a table there."""

    folder: Path
    stream: Stream

    @cached_property
    def store(self) -> TableStore:
        """Open the scripted catalog as a connection would."""
        properties = {
            "py-catalog-impl": "support.scripted_catalog.ScriptedCatalog",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }
        return TableStore(CatalogPreset("lake", properties))

    @property
    def catalog(self) -> ScriptedCatalog:
        """Return the catalog, whose answers can be scripted."""
        return cast("ScriptedCatalog", self.store.catalog)

    def close(self) -> None:
        """Close the catalog; the next use opens it again."""
        if "store" in self.__dict__:
            self.__dict__.pop("store").catalog.close()

    @property
    def table(self) -> Table:
        """Load the table afresh."""
        return self.store.load(self.stream.table.name)

    @property
    def history(self) -> History:
        """Read the ledger afresh, with the archive behind it."""
        return load_with_history(self.store, self.stream.table.name)[1]

    @property
    def point(self) -> RecoveryPoint | None:
        """Find the stream's recovery point."""
        return find_recovery_point(self.history, self.stream.stream)

    def begin(self, stream: Stream | None = None) -> None:
        """Create the table if need be and bootstrap a stream of it at offset 0."""
        stream = stream or self.stream
        if self.store.find(stream.table.name) is None:
            self.store.create(stream.table.name, new_table(stream))
        table, history = load_with_history(self.store, stream.table.name)
        state = make_state(batch=f"bootstrap of {stream.stream}")
        self.mark(keys.BOOTSTRAP, {stream.stream: state}, table, history)

    def mark(
        self, kind: str, states: dict[str, StreamState], table: Table, history: History
    ) -> int:
        """Publish an empty snapshot with these states."""
        return publish_marker(self.store, table, Marker(kind, states, history.head, "test", {}))

    def plan(self, *ends: int, suite_hash: str = "") -> BatchPlan:
        """Plan up to these ends."""
        table, point = self.table, self.point
        assert point is not None
        metadata = table.metadata
        facts = TableFacts(
            str(metadata.table_uuid), metadata.current_schema_id, metadata.default_spec_id
        )
        given = PlanInput(self.stream, point.state, [make_topic(ends)], facts, suite_hash)
        return cast("BatchPlan", plan_batch(given))

    def stage(self, plan: BatchPlan) -> Staged:
        """Stage one row for each offset of the plan."""
        branch = name_branch(plan.stream, plan.base_epoch)
        base_head = create_branch(self.store, plan.table, branch)
        table = self.table
        append(self.catalog, table, rows_of(table, plan), branch)
        counts = tuple(
            PartitionCount(topic=topic, partition=p, rows_read=r.width, rows_good=r.width)
            for topic, p, r in iterate_ranges(plan.offset_ranges)
        )
        rows = sum(count.rows_read for count in counts)
        return Staged(
            stream=plan.stream,
            batch_id=plan.batch_id,
            attempt=branch,
            snapshot_id=self.table.metadata.refs[branch].snapshot_id,
            base_head=base_head,
            rows_read=rows,
            rows_written=rows,
            rows_quarantined=0,
            rows_skipped=0,
            partitions=counts,
        )

    def publish(self, plan: BatchPlan, staged: Staged) -> PublishedBatch:
        """Publish with a passed verdict."""
        return publish_batch(self.store, plan, staged, passed(plan, staged), "test")

    def ingest(self, *ends: int) -> PublishedBatch:
        """Plan, stage and publish one batch."""
        plan = self.plan(*ends)
        return self.publish(plan, self.stage(plan))

    def append_foreign(self, *ids: int) -> None:
        """Append rows to main as another writer would, without offsets of the topic."""
        table = self.table
        kafka = {"topic": "elsewhere", "partition": 0, "offset": 0}
        rows = [{"id": number, "name": "foreign", "_kafka": kafka} for number in ids]
        append(self.catalog, table, rows)

    def expire_history(self) -> None:
        """Archive the ledger, then keep no snapshot but those that a ref names."""
        archive_all_entries(self.store, self.history)
        metadata = self.table.metadata
        kept = {ref.snapshot_id for ref in metadata.refs.values()}
        gone = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept]
        self.table.maintenance.expire_snapshots().by_ids(gone).commit()

    def coordinates(self) -> list[tuple[int, int]]:
        """List partition and offset of every row on main that came from the topic."""
        rows = self.table.scan(selected_fields=("_kafka",)).to_arrow().to_pylist()
        found = [row["_kafka"] for row in rows]
        return sorted((k["partition"], k["offset"]) for k in found if k and k["topic"] == "orders")


class Molds:
    """States of a lake that are built once; each test gets its own copy at the same place.

    The place has to be the same: Iceberg's metadata names every file by its whole path.
    """

    def __init__(self, folder: Path) -> None:
        """Keep what is built beside the place where it is used."""
        self.place, self._kept = folder / "lake", folder / "kept"
        self._made: dict[tuple[str, str], tuple[Path, object]] = {}

    def cast(self, lake: Lake, build: Callable[[Lake], Made]) -> Made:
        """Bring a lake into the state that `build` makes, and give a copy of what it returned."""
        name = (f"{build.__module__}.{build.__qualname__}", lake.stream.model_dump_json())
        if name in self._made:
            lake.close()
            kept, made = self._made[name]
            shutil.rmtree(self.place)
            shutil.copytree(kept, self.place)
        else:
            made = build(lake)
            lake.close()
            kept = self._kept / str(len(self._made))
            self._made[name] = kept, made
            shutil.copytree(self.place, kept)
        return deepcopy(cast("Made", made))

    @contextmanager
    def begin(self, stream: Stream) -> Iterator[Lake]:
        """Return a fresh catalog with a stream begun at offset 0 of two partitions."""
        lake = Lake(self.place, stream)
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        self.cast(lake, Lake.begin)
        with stamina.set_testing(True, attempts=MAX_ATTEMPTS, cap=True):
            yield lake
        lake.close()


def rows_of(table: Table, plan: BatchPlan) -> pa.Table:
    """Make one row for each offset of the plan."""
    rows = [
        {"id": offset, "name": "x", "_kafka": {"topic": topic, "partition": p, "offset": offset}}
        for topic, p, r in iterate_ranges(plan.offset_ranges)
        for offset in range(r.start, r.end)
    ]
    return pa.Table.from_pylist(rows, schema=table.schema().as_arrow())


def passed(plan: BatchPlan, staged: Staged) -> Verdict:
    """Judge a batch as good."""
    return Verdict(
        stream=plan.stream, batch_id=plan.batch_id, attempt=staged.attempt, outcome="passed"
    )
