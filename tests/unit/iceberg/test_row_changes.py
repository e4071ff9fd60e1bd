"""Rows that stay are copied value by value: no null becomes empty, whatever it is nested in."""

import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from support.lake import Lake, Molds, make_stream, passed

from frazil.iceberg import commits
from frazil.iceberg.branches import create_branch, name_branch
from frazil.ingest.fast_path_files import describe_file
from frazil.ingest.messages import PartitionCount, Staged
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.maintenance.row_expiry import expire_rows
from frazil.recovery.range_overwrite import publish_replacement
from frazil.workspace import Workspace

PAIR = "struct<a: long, b: string>"
COLUMNS = {
    "id": "long!",
    "at": "timestamptz",
    "flag": "boolean",
    "small": "int",
    "ratio": "float",
    "wide": "double",
    "price": "decimal(9,2)",
    "exact": "decimal(38,10)",
    "day": "date",
    "local": "timestamp",
    "text": "string",
    "raw": "binary",
    "uid": "uuid",
    "longs": "list<long>",
    "pairs": f"list<{PAIR}>",
    "by_name": f"map<string, {PAIR}>",
    "counts": "map<string, long>",
    "inner": f"struct<longs: list<long>, pairs: list<{PAIR}>, by_name: map<string, {PAIR}>>",
    "grid": f"list<list<{PAIR}>>",
    "maps": f"list<map<string, list<{PAIR}>>>",
    "deep": f"map<string, struct<pairs: list<{PAIR}>, more: map<string, list<{PAIR}>>>>",
}
EMPTY: dict[str, object] = {
    "longs": [],
    "pairs": [],
    "by_name": [],
    "counts": [],
    "inner": {"longs": None, "pairs": None, "by_name": None},
    "grid": [None, []],
    "maps": [None, [], [("k", None)]],
    "deep": [("k", None)],
}
HOLLOW: dict[str, object] = {
    "longs": [None],
    "pairs": [None, {"a": None, "b": None}],
    "by_name": [("k", None), ("l", {"a": None, "b": None})],
    "counts": [("k", None)],
    "inner": {"longs": [], "pairs": [], "by_name": []},
    "grid": [[None], None],
    "maps": [[("k", []), ("l", [None])]],
    "deep": [("k", {"pairs": None, "more": None}), ("l", {"pairs": [], "more": [("m", None)]})],
}
WIDEST: dict[str, object] = {
    "at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    "flag": False,
    "small": -(2**31),
    "ratio": math.inf,
    "wide": -0.0,
    "price": Decimal("-9999999.99"),
    "exact": Decimal("9999999999999999999999999999.9999999999"),
    "day": date(1, 1, 1),
    "local": datetime(1, 1, 1),  # noqa: DTZ001 - a type without a zone
    "text": "é" * 5000,
    "raw": b"\x00\xff",
    "uid": UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes,
    "longs": [2**63 - 1, -(2**63)],
    "deep": [("k", {"pairs": [{"a": 1, "b": ""}], "more": [("m", [{"a": None, "b": "x"}])]})],
}
KEPT = [{}, EMPTY, HOLLOW, WIDEST, {"text": "", "raw": b"", "wide": 5e-324}]
GONE = len(KEPT)
Delete = Callable[[Lake, Workspace], object]


@pytest.fixture
def lake(molds: Molds) -> Iterator[Lake]:
    """Begin a stream with a column of each type."""
    rule = {"column": "at", "keep_days": 30}
    stream = make_stream(value={"columns": COLUMNS}, maintenance={"expire_rows": rule})
    with molds.begin(stream) as lake:
        yield lake


def publish_file(lake: Lake) -> None:
    """Publish a batch of one file as Spark writes it; PyIceberg's writer loses nulls."""
    values = [*KEPT, {"at": datetime.now(UTC) - timedelta(days=60)}]
    rows = [
        {"id": n, **row, "_kafka": {"topic": "orders", "partition": 0, "offset": n}}
        for n, row in enumerate(values)
    ]
    plan = lake.plan(len(rows), 0)
    branch = name_branch(plan.stream, plan.base_epoch)
    base_head = create_branch(lake.store, plan.table, branch)
    table, path = lake.table, f"{lake.folder}/a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema_to_pyarrow(table.schema())), path)
    added = commits.build_append(table, {}, [describe_file(table, f"file://{path}")], branch)
    head = added.snapshot.snapshot_id
    required = commits.require_head(table, branch, base_head)
    commits.commit(lake.catalog, table, required, [added, commits.set_branch(branch, head)])
    counts = PartitionCount(topic="orders", partition=0, rows_read=len(rows), rows_good=len(rows))
    staged = Staged(
        stream=plan.stream,
        batch_id=plan.batch_id,
        attempt=branch,
        snapshot_id=head,
        base_head=base_head,
        rows_read=len(rows),
        rows_written=len(rows),
        rows_quarantined=0,
        rows_skipped=0,
        partitions=(counts,),
    )
    lake.publish(plan, staged)


def read_raw(table: Table) -> list[dict[str, object]]:
    """Read all live files as they are; PyIceberg's reader loses nulls too."""
    paths = [task.file.file_path for task in table.scan().plan_files()]
    rows = [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted(rows, key=lambda row: str(row["id"]))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait no ten seconds for a broker that is not there."""
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 0.1)


def erase_one(_lake: Lake, work: Workspace) -> None:
    request = ErasureRequest(
        stream="orders", keys=(f"id={GONE}",), by="jane", reason="request 12", dry_run=False
    )
    erase(work, plan_erasure(work, request), request)


def expire(_lake: Lake, work: Workspace) -> None:
    expire_rows(work)


def replay_one(lake: Lake, work: Workspace) -> None:
    ahead = lake.plan(100, 0)
    plan = ahead.model_copy(
        update={"batch_id": "replay", "ranges": {"orders": {0: (GONE, GONE + 1)}}}
    )
    staged = lake.stage(plan)
    publish_replacement(work, plan, staged, passed(plan, staged))


@pytest.mark.parametrize("delete", [erase_one, expire, replay_one])
def test_no_value_of_a_row_that_stays_changes(lake: Lake, work: Workspace, delete: Delete) -> None:
    publish_file(lake)
    before = read_raw(lake.table)[:GONE]

    delete(lake, work)

    after = read_raw(lake.table)
    assert [row["id"] for row in after[:GONE]] == list(range(GONE))
    for name in (*COLUMNS, "_kafka"):
        assert [row[name] for row in after[:GONE]] == [row[name] for row in before], name


def test_a_copy_has_no_statistics_of_uuids_which_spark_would_skip_it_by(
    lake: Lake, work: Workspace
) -> None:
    publish_file(lake)

    erase_one(lake, work)

    (task,) = lake.table.scan().plan_files()
    schema = lake.table.schema()
    uid, raw = (schema.find_field(name).field_id for name in ("uid", "raw"))
    assert uid not in task.file.lower_bounds
    assert raw in task.file.lower_bounds
    footer = pq.read_metadata(task.file.file_path.removeprefix("file://")).row_group(0)
    columns = {c.path_in_schema: c for c in map(footer.column, range(footer.num_columns))}
    assert columns["uid"].statistics is None
    assert columns["raw"].statistics is not None
