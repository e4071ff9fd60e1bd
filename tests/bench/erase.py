"""What an erasure and an expiry of rows cost, without a broker and without Spark; prints JSON.

ROWS (1,000,000) in FILES (8) make the table, KEYS (100) are erased, each of one row in another
place; then half of all rows, every second one, which no summary can list as neighbours.
"""

import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.lake import Lake, make_stream

from frazil.ledger.deletions import Deletion
from frazil.ledger.recovery_point import keys
from frazil.maintenance.erasure_keys import ErasedKeys, select_rows_by_key
from frazil.maintenance.row_deletion import RowsToDelete, delete_rows, find_no_dead_letters
from frazil.maintenance.row_expiry import select_expired_rows
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
    landed = delete_rows(
        work, wanted, Deletion(kind, work.stream.stream, work.run_id, {}), find_no_dead_letters
    )
    summaries = [each.entry.summary for each in landed]
    return {
        "seconds": round(time.monotonic() - started, 2),
        "rows": sum(int(summary[keys.ROWS_DELETED]) for summary in summaries),
        "snapshots": len(landed),
        "largest_list_bytes": max(len(summary[keys.COORDINATES]) for summary in summaries),
    }


def main(rows: int, files: int, count: int) -> dict[str, object]:
    """Fill a table, erase, expire."""
    with tempfile.TemporaryDirectory() as folder:
        columns = {"id": "long!", "name": "string", "at": "timestamptz"}
        lake = Lake(Path(folder), make_stream(value={"columns": columns}))
        lake.begin()
        fill(lake, rows, files)
        work = Workspace(lake.stream, lake.folder, "bench")
        work.__dict__["store"] = lake.store
        chosen = tuple(f"customer-{number}" for number in range(0, rows, rows // count))
        schema = lake.table.schema()
        erased = select_rows_by_key(lake.table, ErasedKeys({"name": chosen}, frozenset()))
        cutoff = datetime.now(UTC) - timedelta(days=30)
        return {
            "rows": rows,
            "files": files,
            "load": os.getloadavg()[0],
            "erase": measure(work, keys.ERASE, erased),
            "expire": measure(
                work, keys.EXPIRE_ROWS, select_expired_rows(schema, lake.stream, RULE, cutoff)
            ),
        }


if __name__ == "__main__":
    given = (
        int(os.environ.get(n, d)) for n, d in (("ROWS", "1000000"), ("FILES", "8"), ("KEYS", "100"))
    )
    print(json.dumps(main(*given), indent=2))
