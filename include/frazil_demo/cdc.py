"""`make demo-cdc`: a table in PostgreSQL becomes a state table, change by change, and is compared.

PostgreSQL and the connector run as long as the command; their data stay in FRAZIL_HOME. If root
runs the command, PostgreSQL's data are in the home of the user postgres.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import yaml

from frazil.connections.clients import find_kafka_config, find_spark_remote
from frazil.environment import home_dir
from frazil.errors import FrazilError, StackError, UnknownTopicError
from frazil.ingest.messages import NothingToRead
from frazil.kafka.cluster import KafkaLog
from frazil.observability.status import locate_key
from frazil.state_tables.messages import SourceCheckRequest
from frazil.state_tables.source_check import verify_source
from frazil.workspace import open_workspace
from frazil_cli.output import console, fail, print_table, report_progress, silence_retry_logs
from frazil_cli.steps import run_one_batch
from frazil_demo.connector import TABLE, TOPIC, Connector, run_connector
from frazil_stack.database import DATABASE, USER, Database, run_database

STREAM = "customers"
CONNECTION = "shop_db"
STATE = "shop.customers"
NAMES = ("id", "name", "email", "credit")
DOCUMENT = {
    "stream": STREAM,
    "owner": "demo@example.org",
    "source": {"topic": TOPIC},
    "value": {
        "transform": "flatten_debezium",
        "columns": {"id": "long!", "name": "string", "email": "string", "credit": "decimal(9,2)"},
    },
    "table": {"name": STATE, "mode": "upsert", "id_columns": ["id"]},
}
CREATE = """CREATE TABLE customers (
  id bigint PRIMARY KEY, name text, email text, credit numeric(9,2));
INSERT INTO customers VALUES (1, 'Ada', 'ada@example.org', 10), (2, 'Ben', NULL, 20.50),
  (3, 'Cleo', 'cleo@example.org', 30)"""
CHANGES = {
    "insert": "INSERT INTO customers VALUES (4, 'Dan', NULL, 0)",
    "update": "UPDATE customers SET email = 'ben@example.org', credit = 19.99 WHERE id = 2",
    "key change": "UPDATE customers SET id = 30 WHERE id = 3",
    "delete": "DELETE FROM customers WHERE id = 1",
}
SELECT = "SELECT id, name, email, credit FROM {table} ORDER BY id"
EVENTS, ALL_EVENTS = 3, 10
"""Records of the first rows, and with all changes: a delete and a key change add a tombstone."""
_WAIT_SECONDS = 180


def main() -> None:
    """Capture a table of PostgreSQL, merge its changes, and compare both sides."""
    silence_retry_logs()
    started = time.monotonic()
    home = home_dir().resolve() / "cdc"
    with ExitStack() as parts:
        subprocess.run([_frazil(), "stack", "up", "--only", "kafka,spark"], check=True)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = parts.enter_context(run_database(home))
        report_progress("PostgreSQL is up", started)
        _write_stream(home / "streams", database)
        _create(database, started)
        config = find_kafka_config("kafka_default")
        servers = config["bootstrap.servers"]
        running = run_connector(
            servers, database, home, lambda text: report_progress(text, started)
        )
        connector = parts.enter_context(running)
        _wait_for_events(connector, config, EVENTS)
        report_progress(f"the connector has sent the rows to topic {TOPIC}", started)
        _merge()
        _show("The state table, before the changes", _query_state())
        if _change(database, started):
            _wait_for_events(connector, config, ALL_EVENTS)
            _merge()
        _compare(database, started)


def _write_stream(folder: Path, database: Database) -> None:
    """Write the stream file, and define the connection for this process alone."""
    folder.mkdir(exist_ok=True)
    (folder / f"{STREAM}.yaml").write_text(yaml.safe_dump(DOCUMENT, sort_keys=False))
    os.environ["FRAZIL_STREAMS"] = str(folder)
    login = {"login": USER, "password": database.password, "schema": DATABASE}
    place = {"conn_type": "postgres", "host": "127.0.0.1", "port": database.port}
    os.environ[f"AIRFLOW_CONN_{CONNECTION.upper()}"] = json.dumps({**place, **login})


def _create(database: Database, started: float) -> None:
    if database.ask("SELECT to_regclass('customers')") == [(None,)]:
        database.ask(CREATE)
        report_progress(f"table {TABLE} created with 3 rows", started)


def _change(database: Database, started: float) -> bool:
    """Change the source unless an earlier run did; return whether this run changed it."""
    if database.ask("SELECT 1 FROM customers WHERE id = 30"):
        report_progress("the changes were made by an earlier run", started)
        return False
    for name, statement in CHANGES.items():
        console.print(f"  {name}: {statement}", markup=False)
    database.ask("; ".join(CHANGES.values()))
    return True


def _wait_for_events(connector: Connector, config: dict[str, str], count: int) -> None:
    """Wait until the topic has this many records.

    Raises:
        StackError: the connector ended, or sent too few of them in time.
    """
    log, deadline = KafkaLog(config), time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        connector.require_running()
        try:
            facts = log.fetch_topic(TOPIC)
        except UnknownTopicError:
            facts = None
        if facts is not None and sum(each.end for each in facts.partitions) >= count:
            return
        time.sleep(0.5)
    raise StackError(
        f"topic {TOPIC} has fewer than {count} records after {_WAIT_SECONDS} s",
        f"read {home_dir() / 'cdc' / 'connect.log'}, then `make demo-cdc`",
    )


def _merge() -> None:
    """Publish and merge the new records."""
    while not isinstance(run_one_batch(STREAM), NothingToRead):
        pass


def _query_state() -> list[tuple[str, ...]]:
    """Read the state table by Spark."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second

    spark = SparkSession.builder.remote(find_spark_remote()).create()
    try:
        return _show_rows(spark.sql(SELECT.format(table=f"lake.{STATE}")).collect())
    finally:
        spark.stop()


def _show(title: str, rows: Sequence[Sequence[object]]) -> None:
    print_table(title, NAMES, rows)


def _show_rows(rows: Sequence[Sequence[object]]) -> list[tuple[str, ...]]:
    """Return rows as texts, null as an empty text."""
    return [tuple("" if value is None else str(value) for value in row) for row in rows]


def _compare(database: Database, started: float) -> None:
    """Show both sides, the change behind a row, and the comparison."""
    query = f"SELECT {', '.join(NAMES)} FROM {TABLE} ORDER BY id"  # noqa: S608 - our own
    _show("The source, in PostgreSQL", _show_rows(database.ask(query)))
    _show(f"The state table {STATE}, in Iceberg", _query_state())
    work = open_workspace(STREAM, f"demo-{os.getpid()}")
    for key in ("id=30", "id=1"):
        console.print(f"\n$ frazil where {STREAM} --key {key}", markup=False)
        console.print(locate_key(work, [key]).text, markup=False)
    console.print(f"\n$ frazil verify-source {STREAM} --connection {CONNECTION}", markup=False)
    request = SourceCheckRequest(stream=STREAM, connection=CONNECTION)
    check = verify_source(work, request, lambda text: report_progress(text, started))
    console.print(check.text, markup=False)
    report_progress("done; PostgreSQL and the connector stop now", started)
    folder = os.environ["FRAZIL_STREAMS"]
    console.print(
        "\nTry next:\n"
        f"  export FRAZIL_STREAMS={folder}\n"
        f"  .venv/bin/frazil snapshots {STREAM}   the batches and what each merge did\n"
        f"  .venv/bin/frazil audit {STREAM}       fold all changes again and compare\n"
        "  make demo-cdc                         again: nothing is new\n"
        "  make down                             stop Kafka and Spark",
        markup=False,
    )
    if check.verdict != "equal":
        raise StackError("the state table differs from its source", check.next_step)


def _frazil() -> str:
    return str(Path(sys.executable).with_name("frazil"))


if __name__ == "__main__":
    try:
        main()
    except FrazilError as error:
        fail(error, as_json=False)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
