"""What an erasure and an expiry of rows cost, without a broker and without Spark; prints JSON.

ROWS (1,000,000) in FILES (8) make the table, KEYS (100) are erased, each of one row in another
place; then half of all rows, every second one, which no summary can list as neighbours. Before
that, as many other keys are erased while another thread publishes a batch every PAUSE (1) seconds.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.lake import Lake, make_stream

from frazil.iceberg.table_view import TableView
from frazil.ledger.deletions import Deletion
from frazil.ledger.recovery_point import keys
from frazil.maintenance.erasure_keys import ErasedKeys, select_rows_by_key
from frazil.maintenance.expired_rows import list_own_topics, select_expired_rows
from frazil.maintenance.row_deletion import RowsToDelete, delete_rows, find_no_dead_letters
from frazil.streams.models import ExpireRows
from frazil.workspace import Workspace

PLACE = pa.struct(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
    ]
)
RULE = ExpireRows(column="at", keep_days=30)


def fill(lake: Lake, rows: int, files: int) -> None:
    """Append rows of which every second one is old."""
    now = datetime.now(UTC).replace(tzinfo=None)
    times = np.array([now - timedelta(days=60), now], dtype="datetime64[us]")
    for part in np.array_split(np.arange(rows), files):
        offsets = pa.array(part, pa.int64())
        kafka = pa.StructArray.from_arrays(
            [pa.array(["orders"] * len(part)), pa.array(np.zeros(len(part), np.int32)), offsets],
            fields=list(PLACE),
        )
        at = pa.array(times[part % 2]).cast(pa.timestamp("us", "UTC"))
        names = pa.array([f"customer-{number}" for number in part])
        schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("name", pa.string()),
                pa.field("at", at.type),
                pa.field("_kafka", kafka.type, nullable=False),
            ]
        )
        lake.table.append(pa.table([offsets, names, at, kafka], schema=schema))


def measure(work: Workspace, kind: str, wanted: RowsToDelete) -> dict[str, object]:
    """Take out rows; give seconds, snapshots and the largest summary."""
    started = time.monotonic()
    deletion = Deletion(kind, work.stream.stream, work.run_id, {})
    view = TableView(work.store, work.stream.table.name)
    landed, _ = delete_rows(view, wanted, deletion, find_no_dead_letters)
    summaries = [each.entry.summary for each in landed]
    return {
        "seconds": round(time.monotonic() - started, 2),
        "rows": sum(int(summary[keys.ROWS_DELETED]) for summary in summaries),
        "snapshots": len(landed),
        "largest_list_bytes": max(len(summary[keys.COORDINATES]) for summary in summaries),
    }


@contextmanager
def publish_beside(lake: Lake, pause: float) -> Iterator[list[int]]:
    """Publish a small batch after each pause, on a connection of its own; count them."""
    published, ended = [0], threading.Event()

    def publish() -> None:
        own = Lake(lake.folder, lake.stream)
        while not ended.wait(pause):
            point = own.point
            assert point is not None
            start = point.state.offsets["orders"][0]
            own.ingest(start + 10, 0)
            published[0] += 1
        own.close()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield published
    finally:
        ended.set()
        thread.join()


def choose(rows: int, count: int, first: int) -> ErasedKeys:
    """Choose keys of rows that lie far apart."""
    numbers = range(first, rows, rows // count)
    return ErasedKeys({"name": tuple(f"customer-{number}" for number in numbers)}, frozenset())


def main(rows: int, files: int, count: int, pause: float) -> dict[str, object]:
    """Fill a table, erase beside batches, erase, expire."""
    with tempfile.TemporaryDirectory() as folder:
        columns = {"id": "long!", "name": "string", "at": "timestamptz"}
        lake = Lake(Path(folder), make_stream(value={"columns": columns}))
        lake.begin()
        fill(lake, rows, files)
        work = Workspace(lake.stream, lake.folder, "bench")
        work.__dict__["store"] = lake.store
        table = lake.table
        with publish_beside(lake, pause) as published:
            beside = measure(work, keys.ERASE, select_rows_by_key(table, choose(rows, count, 1)))
        beside["batches_published"] = published[0]
        work = Workspace(lake.stream, lake.folder, "bench-2")
        work.__dict__["store"] = lake.store
        erased = select_rows_by_key(table, choose(rows, count, 0))
        cutoff = datetime.now(UTC) - timedelta(days=30)
        own = list_own_topics(lake.history, lake.stream)
        expired = select_expired_rows(table.schema(), lake.stream, RULE, cutoff, own)
        return {
            "rows": rows,
            "files": files,
            "load": os.getloadavg()[0],
            "erase_beside_batches": beside,
            "erase": measure(work, keys.ERASE, erased),
            "expire": measure(work, keys.EXPIRE_ROWS, expired),
        }


if __name__ == "__main__":
    given = (
        int(os.environ.get(n, d)) for n, d in (("ROWS", "1000000"), ("FILES", "8"), ("KEYS", "100"))
    )
    print(json.dumps(main(*given, float(os.environ.get("PAUSE", "1"))), indent=2))
