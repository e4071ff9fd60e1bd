"""The drill of state tables: a merge is killed, and the state is compared with its source."""

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from frazil.errors import DrillError, StackError
from frazil.failpoints import VARIABLE as FAILPOINT
from frazil_stack.database import DATABASE, USER, Database, choose_folder, find_programs
from frazil_stack.database import run_database as run_kept_database
from frazil_stack.drills.scratch_stream import KILLED, Scratch

CONNECTION = "frazil_drill_source"
_CREATE = "CREATE TABLE items (id bigint PRIMARY KEY, name text)"
_ROWS = "INSERT INTO items SELECT id, 'first' FROM generate_series(0, 99) id RETURNING id, name"
_CHANGES = {
    "u": "UPDATE items SET name = 'changed' WHERE id < 10 RETURNING id, name",
    "d": "DELETE FROM items WHERE id >= 90 RETURNING id, name",
    "c": "INSERT INTO items SELECT id, 'new' FROM generate_series(100, 104) id RETURNING id, name",
}


def explain_no_database() -> str | None:
    """Return why no PostgreSQL can be started, or None."""
    try:
        find_programs()
        choose_folder(Path())
    except StackError as error:
        return f"the drill needs a PostgreSQL: {error.facts}"
    return None


@contextlib.contextmanager
def opened_database(folder: Path) -> Iterator[Database]:
    """Run a PostgreSQL of its own, and remove its data afterwards.

    Raises:
        StackError: it does not start.
    """
    try:
        with run_kept_database(folder) as database:
            yield database
    finally:
        shutil.rmtree(choose_folder(folder), ignore_errors=True)


def kill_merge(scratch: Scratch) -> float:
    """Kill a merge before its commit, merge again, and compare the state with the source."""
    database = scratch.database
    if database is None:
        raise DrillError("this drill has no PostgreSQL", "run it with `frazil drill`")
    scratch.write_stream(
        value={
            "convert": "json",
            "transform": "flatten_debezium",
            "columns": {"id": "long!", "name": "string"},
        },
        table={**scratch.document["table"], "mode": "upsert", "id_columns": ["id"]},
    )
    database.ask(_CREATE)
    _change(scratch, database, "c", _ROWS)
    scratch.must_succeed("run")
    for operation, statement in _CHANGES.items():
        _change(scratch, database, operation, statement)
    run = scratch.run_command("run", **{FAILPOINT: "merge.after-stage"})
    scratch.expect("the merge was killed", run.code, KILLED)
    scratch.expect("rows of the state", scratch.count_rows(), 100)
    began = time.monotonic()
    scratch.must_succeed("merge")
    seconds = time.monotonic() - began
    scratch.expect("rows of the state", scratch.count_rows(), 95)
    source = {f"AIRFLOW_CONN_{CONNECTION.upper()}": _write_connection(database)}
    scratch.must_succeed("verify-source", "--connection", CONNECTION, **source)
    return seconds


def _change(scratch: Scratch, database: Database, operation: str, statement: str) -> None:
    """Change the source, and send the change events that Debezium would send."""
    rows = database.ask(statement)
    [(lsn,)] = database.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
    at_ms, part = int(time.time() * 1000), "before" if operation == "d" else "after"
    source: dict[str, str | int] = {"connector": "postgresql", "snapshot": "false", "ts_ms": at_ms}
    source |= {"lsn": int(lsn), "db": DATABASE, "schema": "public", "table": "items"}
    event = {"before": None, "after": None, "op": operation, "ts_ms": at_ms, "source": source}
    producer = scratch.open_producer()
    for key, name in rows:
        value = json.dumps({**event, part: {"id": key, "name": name}})
        producer.produce(scratch.name, value=value, key=json.dumps({"id": key}), partition=0)
    scratch.flush(producer, len(rows))


def _write_connection(database: Database) -> str:
    place = {"conn_type": "postgres", "host": "127.0.0.1", "port": database.port}
    return json.dumps({**place, "login": USER, "password": database.password, "schema": DATABASE})
