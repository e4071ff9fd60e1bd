"""PostgreSQL 15 and Debezium 3.6, live: the changes in the table, folded by key, are the source.

    PYTHONPATH=tests python tests/bench/live_cdc.py HOME

HOME is the folder of a running stack (`frazil stack up --only kafka,spark`). PostgreSQL comes from
Debian's package postgresql-15, Debezium from Maven Central; without the former the script says so.
"""

import json
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.jvm_peers import run_jvm
from confluent_kafka import Consumer
from conftest import REPO, Lab, Stack
from faults.rest_catalog import find_free_port
from pyiceberg.catalog import load_catalog
from support.ivy_jars import ensure_jars
from support.postgres import MISSING, PASSWORD, PROGRAMS, USER, Database, start_postgres

COLUMNS = {
    "id": "long!",
    "name": "string",
    "doc": "string",
    "bal": "decimal(12,2)",
    "free": "decimal(38,10)",
    "d": "date",
    "ts": "timestamp",
    "tz": "timestamptz",
    "u": "uuid",
    "words": "list<string>",
    "nums": "list<int>",
    "raw": "binary",
    "mood": "string",
}
TABLE = """CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE customers (id bigint PRIMARY KEY, name text, doc text, bal numeric(12,2), free numeric,
  d date, ts timestamp, tz timestamptz, u uuid, words text[], nums int[], raw bytea, mood mood);
ALTER TABLE customers ALTER doc SET STORAGE EXTERNAL, ALTER words SET STORAGE EXTERNAL,
  ALTER nums SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL;
CREATE VIEW filled AS SELECT i AS id, 'n' || i AS name, repeat(md5(i::text), 200) AS doc,
  i * 1.25 AS bal, i / 8.0 AS free, DATE '2026-01-01' + i AS d,
  TIMESTAMP '2026-01-01 01:02:03.456789' + i * INTERVAL '1 h' AS ts,
  TIMESTAMPTZ '2026-01-01 01:02:03.4+02' AS tz, md5(i::text)::uuid AS u,
  array_fill(md5(i::text), ARRAY[200]) AS words, array_fill(i, ARRAY[3000]) AS nums,
  convert_to(repeat(md5(i::text), 200), 'UTF8') AS raw, 'happy'::mood AS mood
  FROM generate_series(1, 2000) AS i;"""


@contextmanager
def start_debezium(
    stack: Stack, database: Database, prefix: str, folder: Path
) -> Iterator["subprocess.Popen[str]"]:
    """Start a standalone worker with one connector; its topics begin with `prefix`.

    A worker that starts again with the same folder goes on at the offsets that it has there.
    """
    jars = ensure_jars(REPO / "include" / "stack" / "ivy-debezium.xml", "debezium")
    worker = {
        "bootstrap.servers": stack.bootstrap,
        "listeners": f"http://127.0.0.1:{find_free_port()}",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
        "plugin.discovery": "service_load",
    }
    connector = {
        "name": "customers",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": USER,
        "database.password": PASSWORD,
        "database.dbname": "postgres",
        "plugin.name": "pgoutput",
        "topic.prefix": prefix,
        "table.include.list": "public.customers",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
    }
    paths = [folder / "worker.properties", folder / "connector.properties"]
    for path, settings in zip(paths, (worker, connector), strict=True):
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = ["-Xmx320m", "-cp", f"{jars}/*", main, *map(str, paths)]
    with run_jvm(command, folder / f"connect-{secrets.token_hex(2)}.log") as process:
        yield process


def wait_for_key(stack: Stack, topic: str, key: int, seconds: int = 300) -> None:
    """Wait until the topic has a record with this id as its key."""
    consumer = Consumer(
        {
            "bootstrap.servers": stack.bootstrap,
            "group.id": secrets.token_hex(4),
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    consumer.subscribe([topic])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        message = consumer.poll(1)
        found = message.key() if message is not None and message.error() is None else None
        if found and json.loads(found)["payload"]["id"] == key:
            consumer.close()
            return
    raise TimeoutError(topic)


def change(database: Database, rounds: int) -> None:
    """Change rows in every way; most updates leave the large values unchanged."""
    dice = random.Random(7)
    for _ in range(rounds):
        key, new = dice.randrange(1, 2000), dice.randrange(10_000, 10**9)
        statement = dice.choice(
            [
                "INSERT INTO customers SELECT * FROM filled WHERE id = KEY ON CONFLICT DO NOTHING",
                "UPDATE customers SET name = 'xNEW', bal = bal + 0.01 WHERE id % 50 = KEY % 50",
                "UPDATE customers SET doc = NULL, nums = '{}', mood = 'sad' WHERE id = KEY",
                "DELETE FROM customers WHERE id = KEY",
                "UPDATE customers SET id = NEW WHERE id = KEY",
            ]
        )
        database.ask(statement.replace("KEY", str(key)).replace("NEW", str(new)))


def fold(lab: Lab) -> tuple[dict[object, dict[str, object]], dict[str, int]]:
    """Fold the table by key in the order of offsets; count the operations."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    rows = catalog.load_table(lab.table).scan().to_arrow().to_pylist()
    catalog.close()
    state: dict[object, dict[str, object]] = {}
    deleted: dict[object, dict[str, object]] = {}
    counts: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row["_kafka"]["offset"]):
        counts[row["_op"]] = counts.get(row["_op"], 0) + 1
        counts["unavailable"] = counts.get("unavailable", 0) + len(row["_unavailable"])
        before = state.pop(row["id"], {})
        if row["_op"] == "d":
            deleted[row["id"]] = before
        else:
            headers = {each["key"]: each["value"] for each in row["_kafka"]["headers"] or []}
            old = headers.get("__debezium.oldkey")
            if old is not None and row["_unavailable"]:
                counts["from old key"] = counts.get("from old key", 0) + 1
                key = json.loads(old)
                before = deleted[key.get("payload", key)["id"]]
            kept = {name: before[name] for name in row["_unavailable"]}
            state[row["id"]] = {name: row[name] for name in COLUMNS} | kept
    return state, counts


def compare(database: Database, state: dict[object, dict[str, object]]) -> list[str]:
    """List the differences between the folded table and the source."""
    names = ", ".join(COLUMNS).replace("free", "round(free, 10)").replace("u,", "u::text,", 1)
    source = {}
    for values in database.ask(f"SELECT {names} FROM customers"):  # noqa: S608 - our own names
        row = dict(zip(COLUMNS, values, strict=True))
        raw = row["raw"]
        row["raw"] = bytes(raw) if isinstance(raw, memoryview) else raw
        source[row["id"]] = row
    found = [f"row {key} on one side only" for key in source.keys() ^ state.keys()]
    for key in source.keys() & state.keys():
        ours = {
            name: str(value) if name == "u" and value else value
            for name, value in state[key].items()
        }
        found += [f"{key}.{name}" for name in COLUMNS if ours[name] != source[key][name]]
    return found


def main(home: Path) -> int:
    """Run it once; return the exit code."""
    if not PROGRAMS:
        print(MISSING)
        return 0
    stack, prefix = Stack.read(home), f"c{secrets.token_hex(4)}"
    topic = f"{prefix}.public.customers"
    with start_postgres() as database, tempfile.TemporaryDirectory() as folder:
        database.ask(TABLE)
        database.ask("INSERT INTO customers SELECT * FROM filled WHERE id <= 1000")
        with start_debezium(stack, database, prefix, Path(folder)):
            wait_for_key(stack, topic, 1000)
            change(database, 400)
            database.ask("INSERT INTO customers (id) VALUES (7777777)")
            wait_for_key(stack, topic, 7_777_777)
        lab = Lab(stack, Path(folder), prefix)
        lab.write_stream(
            stream=prefix,
            owner="bench@example.org",
            source={"topic": topic},
            value={"transform": "flatten_debezium", "columns": COLUMNS},
            table={"name": lab.table},
        )
        started = time.monotonic()
        runs = lab.drain()
        seconds = time.monotonic() - started
        state, counts = fold(lab)
        differences = compare(database, state)
    print(
        json.dumps(
            {
                "changes": counts,
                "rows_of_source": len(state),
                "differences": len(differences),
                "first": differences[:5],
                "batches": len(runs) - 1,
                "seconds": round(seconds, 1),
            }
        )
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
