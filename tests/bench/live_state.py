"""PostgreSQL 15 and Debezium 3.6, live: after kills the state table equals the source table.

    PYTHONPATH=tests python tests/bench/live_state.py HOME

HOME is the folder of a running stack (`frazil stack up --only kafka,spark`). pgbench changes rows
for MINUTES (5) while `frazil run` publishes and merges; SEED (random, printed) decides when a run,
the connector and the Spark server are killed. At the end Spark, PyIceberg and, where the packages
`duckdb`, `duckdb-ext-avro` and `duckdb-ext-iceberg` are installed, DuckDB read the state; where
TRINO_HOME and TRINO_JAVA_HOME name one (`support/trino.py`), Trino too.
"""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.jvm_peers import run_jvm
from confluent_kafka import Consumer
from conftest import FRAZIL, REPO, Lab, Stack
from faults.rest_catalog import find_free_port
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from support.avro_bytes import encode
from support.ivy_jars import ensure_jars
from support.postgres import (
    DATABASE,
    MISSING,
    PASSWORD,
    PROGRAMS,
    USER,
    Database,
    find_programs,
    start_postgres,
)
from support.table_readers import read_by_each

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
MINUTES = float(os.environ.get("MINUTES", "5"))
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1, 10**6)
RATE = os.environ.get("RATE", "100")
"""Transactions of pgbench per second."""
CONVERT = os.environ.get("CONVERT", "json")
"""`by_schema_id` captures in Avro, with the registry of `frazil stack up … --with registry`."""
LAST_KEY = 7_777_777
CHANGES = {
    "UPDATE customers SET name = 'x' || :new, bal = bal + 0.01 WHERE id % 500 = :key % 500;": 10,
    "UPDATE customers SET doc = NULL, nums = '{}', mood = 'sad' WHERE id = :key;": 3,
    "INSERT INTO customers SELECT * FROM filled WHERE id = :key ON CONFLICT DO NOTHING;": 4,
    "DELETE FROM customers WHERE id = :key;": 2,
    "UPDATE customers SET id = :new WHERE id = :key;": 1,
}
"""What pgbench does, and how often: most updates leave the large values unchanged."""


@contextmanager
def start_debezium(
    stack: Stack, database: Database, prefix: str, folder: Path
) -> Iterator["subprocess.Popen[str]"]:
    """Start a standalone worker with one connector; its topics begin with `prefix`.

    A worker that starts again with the same folder goes on at the offsets that it has there.
    """
    jars = f"{ensure_jars(REPO / 'include' / 'stack' / 'ivy-debezium.xml', 'debezium')}/*"
    if CONVERT == "by_schema_id":
        more = ensure_jars(Path(__file__).with_name("ivy-avro-converter.xml"), "avro-converter")
        jars = f"{jars}:{more}/*"
    worker = {
        "bootstrap.servers": stack.bootstrap,
        "listeners": f"http://127.0.0.1:{find_free_port()}",
        **choose_converter(stack),
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
        "slot.name": prefix,
        "publication.name": prefix,
        "topic.prefix": prefix,
        "table.include.list": "public.customers",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
    }
    paths = [folder / "worker.properties", folder / "connector.properties"]
    for path, settings in zip(paths, (worker, connector), strict=True):
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = ["-Xmx320m", "-cp", jars, main, *map(str, paths)]
    with run_jvm(command, folder / f"connect-{secrets.token_hex(2)}.log") as process:
        yield process


def choose_converter(stack: Stack) -> dict[str, str]:
    """Return the worker's settings for JSON with schemas, or for Avro with the stack's registry."""
    settings = {"": "org.apache.kafka.connect.json.JsonConverter"}
    if CONVERT == "by_schema_id":
        url = stack.registry_url.replace("/apis/ccompat/v7", "/apis/registry/v3")
        settings = {
            "": "io.apicurio.registry.utils.converter.AvroConverter",
            ".apicurio.registry.url": url,
            ".apicurio.registry.auto-register": "true",
        }
    return {f"{p}.converter{name}": v for p in ("key", "value") for name, v in settings.items()}


def is_key(found: bytes, key: int) -> bool:
    """Return whether a record's key is this one."""
    if CONVERT == "by_schema_id":
        return found[5:] == encode("long", key)
    return bool(json.loads(found)["payload"]["id"] == key)


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
        if found and is_key(found, key):
            consumer.close()
            return
    raise TimeoutError(topic)


@dataclass
class Live:
    """One run: the stream, and what was killed."""

    lab: Lab
    database: Database
    topic: str
    folder: Path
    dice: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    moving: int = 0
    """Keys that `frazil verify-source` found in motion, over all its runs."""
    over: threading.Event = field(default_factory=threading.Event)

    def change_rows(self) -> None:
        """Let pgbench change rows until the time is over."""
        files = []
        for number, (statement, weight) in enumerate(CHANGES.items()):
            path = self.folder / f"{number}.sql"
            path.write_text(
                f"\\set key random(1, 2000)\n\\set new random(10000, 1000000000)\n{statement}\n"
            )
            files += ["-f", f"{path}@{weight}"]
        login = ["-h", "127.0.0.1", "-p", str(self.database.port), "-U", USER]
        load = ["-n", "-c", "2", "-R", RATE, "-T", str(round(MINUTES * 60)), "--max-tries=20"]
        command = [str(find_programs() / "pgbench"), *login, *load, *files, DATABASE]
        given = {**os.environ, "PGPASSWORD": PASSWORD}
        try:
            subprocess.run(command, check=True, env=given, stdout=sys.stderr, stderr=sys.stderr)
        finally:
            self.over.set()

    def run_and_kill(self) -> None:
        """Run batches and merges until the time is over; kill some of the runs."""
        while not self.over.is_set():
            with subprocess.Popen(
                [str(FRAZIL), "run", self.lab.stream],
                env=self.lab.environment(),
                stdout=subprocess.DEVNULL,
                stderr=(self.folder / "run.log").open("a"),
                start_new_session=True,
            ) as process:
                if self.dice.random() < 0.4:
                    self._kill_run(process)
                else:
                    self.kills["runs that ended"] += process.wait() == 0

    def _kill_run(self, process: "subprocess.Popen[bytes]") -> None:
        try:
            process.wait(self.dice.uniform(2, 14))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            self.kills["run"] += 1

    def kill_spark(self) -> None:
        """Kill the Spark server twice; its supervisor starts it again."""
        for _ in range(2):
            if self.over.wait(MINUTES * 60 / 3):
                return
            status = self.lab.frazil("stack", "status", "--json").json
            assert isinstance(status, dict)
            os.kill(status["parts"]["spark_connect"]["pid"], signal.SIGKILL)
            self.kills["spark"] += 1

    def capture_changes(self, prefix: str) -> None:
        """Run the connector, kill it three times, and wait for the last change."""
        wait = MINUTES * 60 / 4
        for _ in range(3):
            with start_debezium(self.lab.stack, self.database, prefix, self.folder) as worker:
                self.over.wait(wait)
                assert worker.poll() is None, "the connector ended by itself"
                worker.kill()
                self.kills["connector"] += 1
        with start_debezium(self.lab.stack, self.database, prefix, self.folder):
            self.over.wait()
            self.database.ask(f"INSERT INTO customers (id) VALUES ({LAST_KEY})")  # noqa: S608
            wait_for_key(self.lab.stack, self.topic, LAST_KEY)

    def verify_source(self) -> None:
        """Compare with the source again and again, until the time is over."""
        while not self.over.is_set():
            found = self.compare_with_source(wait=20)
            self.verdicts[str(found.get("verdict", found))] += 1
            self.moving += found.get("counts", {}).get("in_motion", 0)

    def compare_with_source(self, wait: int) -> Any:
        """Run `frazil verify-source`; give its JSON."""
        command = ("verify-source", self.lab.stream, "--connection", "shop_db", "--json")
        shop = json.dumps(self.database.connection())
        run = self.lab.frazil(*command, f"--wait={wait}", timeout=900, AIRFLOW_CONN_SHOP_DB=shop)
        return json.loads(run.out)

    def read_rest(self) -> None:
        """Run until nothing is new and all is merged; a run may take long on a busy machine."""
        while True:
            run = self.lab.frazil("run", self.lab.stream, "--json", timeout=1800)
            assert run.code == 0, run.out + run.err
            if "next_offsets" in run.out:
                return

    def read_state(self) -> list[dict[str, object]]:
        """Read the state table by PyIceberg."""
        catalog = load_catalog("lake", **self.lab.stack.catalog_properties)
        rows = catalog.load_table(self.lab.table).scan().to_arrow().to_pylist()
        catalog.close()
        return [{name: row[name] for name in COLUMNS} for row in rows]


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


def ask_readers(live: Live) -> dict[str, tuple[int, str]]:
    """Read three columns of the state by each reader; return count and checksum of each."""
    spark = SparkSession.builder.remote(str(live.lab.stack.facts["spark_connect"]["url"])).create()
    catalog = load_catalog("lake", **live.lab.stack.catalog_properties)
    table = catalog.load_table(live.lab.table)
    found = read_by_each(live.folder, spark, live.lab.table, table, ["id", "name", "bal"])
    catalog.close()
    spark.stop()
    return found


def make_live(stack: Stack, database: Database, prefix: str, folder: Path) -> Live:
    """Write the stream file of a state table."""
    lab = Lab(stack, folder, prefix)
    topic = f"{prefix}.public.customers"
    lab.write_stream(
        stream=prefix,
        owner="bench@example.org",
        source={"topic": topic},
        value={"convert": CONVERT, "transform": "flatten_debezium", "columns": COLUMNS},
        table={"name": lab.table, "mode": "upsert", "id_columns": ["id"]},
        batch={"max_records": 5000},
    )
    return Live(lab, database, topic, folder, random.Random(SEED))


def storm(live: Live, prefix: str) -> None:
    """Change, capture, run and kill, all at the same time, until the last change is in Kafka."""
    with ExitStack() as threads:
        failed: list[BaseException] = []

        def guard(*work: object) -> None:
            try:
                work[0](*work[1:])  # type: ignore[operator]
            except BaseException as error:  # noqa: BLE001 - told by the main thread
                failed.append(error)
                live.over.set()

        for work in (live.change_rows, live.kill_spark, live.run_and_kill, live.verify_source):
            thread = threading.Thread(target=guard, args=(work,))
            thread.start()
            threads.callback(thread.join)
        guard(live.capture_changes, prefix)
    if failed:
        raise failed[0]


def main(home: Path) -> int:
    """Run it once; return the exit code."""
    if not PROGRAMS:
        print(MISSING)
        return 0
    stack, prefix = Stack.read(home), f"c{secrets.token_hex(4)}"
    print(f"SEED={SEED}", file=sys.stderr)
    with start_postgres() as database, tempfile.TemporaryDirectory() as name:
        live = make_live(stack, database, prefix, Path(name))
        database.ask(TABLE)
        database.ask("INSERT INTO customers SELECT * FROM filled WHERE id <= 1000")
        with start_debezium(stack, database, prefix, live.folder):
            wait_for_key(stack, live.topic, 1000)
        live.read_rest()  # from now on there is a state to compare
        storm(live, prefix)
        started = time.monotonic()
        live.read_rest()
        last_seconds = round(time.monotonic() - started, 1)
        state = {row["id"]: row for row in live.read_state()}
        differences = compare(database, state)
        readers = ask_readers(live)
        audit = live.lab.frazil("audit", prefix, timeout=600)
        verified = live.compare_with_source(wait=0)
        figures = {
            "seed": SEED,
            "minutes": MINUTES,
            "killed": dict(live.kills),
            "changes": status_of(live),
            "rows_of_source": len(state),
            "differences": len(differences),
            "first": differences[:5],
            "readers": readers,
            "audit": audit.code,
            "verified_while_written": dict(live.verdicts),
            "keys_in_motion": live.moving,
            "verified_at_the_end": verified,
            "seconds_of_last_runs": last_seconds,
        }
        if audit.code:
            print(audit.out, audit.err, file=sys.stderr)
    print(json.dumps(figures))
    is_wrong = "different" in live.verdicts or verified["verdict"] != "equal"
    return 1 if differences or audit.code or is_wrong or len({*readers.values()}) > 1 else 0


def status_of(live: Live) -> int:
    """Count the rows of the change table."""
    catalog = load_catalog("lake", **live.lab.stack.catalog_properties)
    count = catalog.load_table(f"{live.lab.table}__changes").scan().count()
    catalog.close()
    return count


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
