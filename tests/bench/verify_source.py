"""`frazil verify-source` of a large table: seconds and memory, beside a plain read of both sides.

    PYTHONPATH=tests python tests/bench/verify_source.py [ROWS]

Starts a PostgreSQL of its own; the state is written by PyIceberg in files of 250,000 rows.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg2
import pyarrow as pa
from conftest import FRAZIL
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from support.postgres import DATABASE, MISSING, PASSWORD, PROGRAMS, USER, start_postgres
from support.source_lab import SourceLab

from frazil.iceberg.commits import MAIN, build_append, commit, require_head, set_branch

COLUMNS = {
    "id": "long!",
    "name": "string",
    "email": "string",
    "credit": "decimal(12,2)",
    "at": "timestamptz",
}
FILL = """INSERT INTO items SELECT i, 'n' || i, md5(i::text), i * 1.25, 'epoch'::timestamptz
  + i * INTERVAL '1 s' FROM generate_series(1, {rows}) AS i"""
FILE_ROWS = 250_000
NAMES = ("name", "email", "credit", "at")
CREATE = """CREATE TABLE items (
  id bigint PRIMARY KEY, name text, email text, credit numeric(12,2), at timestamptz)"""


def fill_state(lab: SourceLab, rows: int) -> None:
    """Append the same rows to the state."""
    lab.put([])
    store = lab.lake.store
    for start in range(1, rows + 1, FILE_ROWS):
        table = store.load("states.items")
        schema = table.schema().as_arrow()
        numbers = range(start, min(start + FILE_ROWS, rows + 1))
        source = {"lsn": 1, "db": DATABASE, "schema": "public", "table": "items"}
        made = pa.Table.from_pylist(
            [{"id": i, "_source": source, "_kafka": _place(i)} for i in numbers], schema=schema
        )
        found = lab.database.ask(
            "SELECT name, email, credit, at FROM items WHERE id >= %s AND id < %s ORDER BY id",
            numbers.start,
            numbers.stop,
        )
        for name, values in zip(NAMES, zip(*found, strict=True), strict=True):
            field = schema.field(name)
            place = schema.get_field_index(name)
            made = made.set_column(place, field, pa.array(values, field.type))
        files = list(_dataframe_to_data_files(table.metadata, made, table.io))
        added = build_append(table, {}, files)
        head = table.current_snapshot()
        required = require_head(table, MAIN, head and head.snapshot_id)
        commit(
            lab.lake.catalog, table, required, [added, set_branch(MAIN, added.snapshot.snapshot_id)]
        )


def _place(offset: int) -> dict[str, object]:
    return {"topic": "orders", "partition": 0, "offset": offset}


def read_plainly(lab: SourceLab) -> float:
    """Read both sides without comparing them; return the seconds."""
    started = time.monotonic()
    for batch in lab.lake.store.load("states.items").scan().to_arrow_batch_reader():
        batch.num_rows  # noqa: B018 - read, and dropped
    login = {"host": "127.0.0.1", "port": lab.database.port, "user": USER, "dbname": DATABASE}
    with psycopg2.connect(**login, password=PASSWORD) as connection:
        cursor = connection.cursor("plain")
        cursor.itersize = 5000
        cursor.execute("SELECT * FROM items")
        for _ in cursor:
            pass
    connection.close()
    return time.monotonic() - started


def main(rows: int) -> int:
    """Run it once; return the exit code."""
    if not PROGRAMS:
        print(MISSING)
        return 0
    with start_postgres() as database, tempfile.TemporaryDirectory() as name:
        database.ask(CREATE)
        database.ask(FILL.format(rows=rows))
        lab = SourceLab.make(database, Path(name), "items", COLUMNS)
        fill_state(lab, rows)
        plain = read_plainly(lab)
        started = time.monotonic()
        done = verify(lab)
        seconds = time.monotonic() - started
    check = json.loads(done.stdout)
    figures = {
        "rows": rows,
        "verdict": check.get("verdict", check),
        "seconds": round(seconds, 1),
        "plain_read_seconds": round(plain, 1),
        "rows_per_second": round(rows / seconds),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
    }
    print(json.dumps(figures))
    return 0 if check.get("verdict") == "equal" else 1


def verify(lab: SourceLab) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process of its own, whose memory can be measured."""
    properties = {k: v for k, v in lab.lake.store.preset.properties.items() if "impl" not in k}
    catalog = {"extra": {"catalog": "lake", "type": "sql", **properties}}
    given = {
        **os.environ,
        "FRAZIL_STREAMS": str(lab.lake.folder),
        "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(catalog),
        "AIRFLOW_CONN_SHOP_DB": json.dumps(lab.database.connection()),
    }
    command = [str(FRAZIL), "verify-source", "items", "--connection", "shop_db", "--json"]
    return subprocess.run(
        [*command, "--wait=0"], env=given, stdout=subprocess.PIPE, text=True, check=False
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
