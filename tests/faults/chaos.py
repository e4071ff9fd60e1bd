"""`make chaos SEED=… MINUTES=…`: everything at once against one real stack, then the audits.

Producers, overlapping runs that are killed or frozen, replays, maintenance, rollbacks by others
with a person's answer, dying servers; of streams that append, upsert, and follow change events. The
seed decides what each actor does, the machine decides when; a finding therefore comes with the log
of what happened. Exit 1 if any record is lost or doubled, a state is not the fold of its changes,
or anything failed without a typed error.
"""

import contextlib
import json
import os
import random
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
import yaml
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyiceberg.catalog import load_catalog
from rich.console import Console
from rich.table import Table as Grid

from faults.auditor import audit_table
from faults.state_auditor import StateRules, audit_state_table, is_moved, place_of
from faults.storm_records import Changes, Events, Rows
from frazil.failpoints import FAILPOINTS
from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE

REPO = Path(__file__).parents[2]
FRAZIL = Path(sys.executable).with_name("frazil")
PERSON = ("--by", "chaos@example.org", "--reason", "chaos")
PLAIN = {"convert": "json", "columns": {"id": "long!", "name": "string"}}
UPSERT = {"mode": "upsert", "id_columns": ["id"], "partition_by": ["bucket(id, 3)"]}
CHANGES = {"id": "long!", "name": "string", "op": "string!", "at": "long!"}
EVENTS = {"id": "long!", "name": "string", "doc": "string"}
SLICES = {"max_changes": 100}  # for the batches that wait after a merge was killed
STREAMS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "partitioned": {"value": PLAIN, "table": {"partition_by": ["bucket(id, 3)"]}},
    "direct": {"value": PLAIN, "table": {}},
    "upserted": {
        "value": {"convert": "json", "columns": CHANGES},
        "table": {**UPSERT, "cdc_field": "op"},
        "order": {"sequence_by": ["at"]},
        "merge": SLICES,
    },
    "captured": {
        "value": {"convert": "json", "transform": "flatten_debezium", "columns": EVENTS},
        "table": UPSERT,
        "merge": SLICES,
    },
}
STATES = {
    "upserted": StateRules("upserted", "lab.upserted", ("id",), ("at",), "op"),
    "captured": StateRules("captured", "lab.captured", ("id",), operation="_op", has_events=True),
}
"""Streams with state tables, as their auditor knows them."""
RECORDS: Mapping[str, type[Rows]] = {"upserted": Changes, "captured": Events}
"""What streams with state tables send; the others send rows."""
ERROR_NAME = re.compile(r"^([A-Z][A-Za-z]+): ", re.MULTILINE)
RUN_SECONDS = 240
NEEDED = (
    "sent",
    "run: done",
    "killed",
    "rolled back by others",
    "answered",
    "replayed",
    "maintenance",
    *(f"{stream}: keys deleted" for stream in STATES),
    "captured: keys changed",
)
OF_LONG_STORMS, LONG_MINUTES = ("kafka killed", "spark_connect killed"), 20
"""What has to have happened, for a storm to prove anything."""
QUIET_RUNS = 12
"""So many runs may fail after the storm, while servers come back, before that is a finding."""


@dataclass
class Storm:
    """What the actors share."""

    home: Path
    streams: Path
    environment: dict[str, str]
    facts: Mapping[str, Mapping[str, str]]
    until: float
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    struck_at: dict[str, float] = field(default_factory=dict)
    recoveries: list[float] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Return whether actors must stop."""
        return time.monotonic() >= self.until

    def rest(self, seconds: float) -> None:
        """Sleep, but not beyond the end."""
        time.sleep(max(0.0, min(seconds, self.until - time.monotonic())))

    def note(self, text: str) -> None:
        """Write down what happened."""
        self.log.append(f"{time.strftime('%H:%M:%S')} {text}")

    def strike(self, stream: str, what: str) -> None:
        """Begin to wait for the stream's next good run."""
        self.outcomes[what] += 1
        self.struck_at.setdefault(stream, time.monotonic())

    def count(self, stream: str, done: subprocess.CompletedProcess[str]) -> None:
        """Count how a run ended; only typed errors and our own kills may end one."""
        named = ERROR_NAME.search(done.stderr)
        name = named[1] if named else "no name"
        if done.returncode == 0:
            self.outcomes["run: done"] += 1
            if stream in self.struck_at:
                self.recoveries.append(time.monotonic() - self.struck_at.pop(stream))
        elif done.returncode < 0:
            self.outcomes[f"run: {signal.Signals(-done.returncode).name}"] += 1
        else:
            self.outcomes[f"run: {name}"] += 1
            self.expect_next_step(stream, "a run", done)
        self.note(f"{stream} run ended {done.returncode} {name if done.returncode else ''}")

    def expect_next_step(
        self, stream: str, what: str, done: subprocess.CompletedProcess[str]
    ) -> None:
        """Find fault with a failure that nobody killed and that does not say what to do."""
        failed = done.returncode > 0
        if failed and ("Next:" not in done.stderr or "Traceback" in done.stderr):
            self.findings.append(f"{stream}: {what} without a next step: {done.stderr}")

    def frazil(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with self.started(*arguments, **extra) as process:
            return finish(process)

    @contextlib.contextmanager
    def started(self, *arguments: str, **extra: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command in a process group of its own."""
        environment = {**self.environment, **extra}
        with subprocess.Popen(
            [str(FRAZIL), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as process:
            yield process


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a command; one that hangs is killed, and shows up by its signal."""
    try:
        out, err = process.communicate(timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def produce(storm: Storm, stream: str, rnd: random.Random) -> None:
    """Send good and bad records, some in transactions that are aborted; grow the topic once."""
    bootstrap = storm.facts["kafka"]["bootstrap"]
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0}
    settings |= {"enable.idempotence": True}  # keeps the order, as Kafka Connect does
    records, partitions = RECORDS.get(stream, Rows)(rnd), 2
    while not storm.is_over:
        is_transaction = rnd.random() < 0.3
        is_sent = not is_transaction
        name = {"transactional.id": f"{stream}-{secrets.token_hex(4)}"} if is_transaction else {}
        with contextlib.suppress(KafkaException, BufferError):
            producer = Producer({**settings, **name, "message.timeout.ms": 60_000})
            if is_transaction:
                producer.init_transactions(30)
                producer.begin_transaction()
            for _ in range(rnd.randrange(20, 400)):
                for value, key, place, headers in records.draw():
                    number = rnd.randrange(partitions) if place is None else place
                    producer.produce(stream, value, key, partition=number, headers={**headers})
            producer.flush(60)
            if is_transaction and rnd.random() < 0.5:
                producer.abort_transaction(30)
            elif is_transaction:
                producer.commit_transaction(30)
                is_sent = True
            storm.outcomes["sent"] += 1
        if is_sent:
            records.keep()
        else:
            records.forget()
        if rnd.random() < 0.01 and grow(storm, stream):
            partitions = 3
        storm.rest(rnd.uniform(0.5, 4))


def grow(storm: Storm, stream: str) -> bool:
    """Add a third partition; only once, and never mind if the broker is away."""
    bootstrap = storm.facts["kafka"]["bootstrap"]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    with contextlib.suppress(KafkaException):
        admin.create_partitions([NewPartitions(stream, 3)])[stream].result(15)
        storm.outcomes["partition added"] += 1
        return True
    return False


def overlap(storm: Storm, stream: str, rnd: random.Random) -> None:
    """Begin a run beside the others now and then."""
    while not storm.is_over:
        storm.rest(rnd.uniform(10, 40))
        storm.count(stream, storm.frazil("run", stream))


def ingest(storm: Storm, stream: str, rnd: random.Random) -> None:
    """Run batch after batch; some die at a failpoint, some by a kill, some freeze for a while."""
    while not storm.is_over:
        draw = rnd.random()
        extra = {"FRAZIL_FAILPOINT": rnd.choice(FAILPOINTS)} if draw < 0.25 else {}
        with storm.started("run", stream, **extra) as process:
            if 0.25 <= draw < 0.4:
                time.sleep(rnd.uniform(0, 9))
                kill_group(process, signal.SIGKILL)
            elif 0.4 <= draw < 0.5:
                time.sleep(rnd.uniform(0, 9))
                kill_group(process, signal.SIGSTOP)
                time.sleep(rnd.uniform(3, 15))
                kill_group(process, signal.SIGCONT)
            done = finish(process)
        storm.count(stream, done)
        if done.returncode == -signal.SIGKILL:
            storm.strike(stream, "killed")
        storm.rest(rnd.uniform(0, 3))


def kill_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal the run and its Spark client, if they still live."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def replay(storm: Storm, stream: str, rnd: random.Random) -> None:
    """Read offsets again that were published; some replays die on the way."""
    steps = [name for name in FAILPOINTS if name.startswith("replay.")]
    while not storm.is_over:
        storm.rest(rnd.uniform(20, 60))
        partition, width, draw = rnd.randrange(2), rnd.randrange(1, 500), rnd.random()
        published = count_published(storm, stream, partition)
        if not published:
            continue
        start = rnd.randrange(published)
        offsets = f"{stream}:{partition}:{start}-{min(start + width, published)}"
        extra = {"FRAZIL_FAILPOINT": rnd.choice(steps)} if draw < 0.3 else {}
        done = storm.frazil("replay", stream, "--offsets", offsets, "--no-dry-run", **extra)
        outcome = {0: "replayed", -signal.SIGKILL: "replay killed"}
        storm.outcomes[outcome.get(done.returncode, "replay refused")] += 1
        storm.note(f"{stream} replay of {offsets} ended {done.returncode}")
        storm.expect_next_step(stream, "replay", done)


def count_published(storm: Storm, stream: str, partition: int) -> int:
    """Ask how far a partition is in the table; 0 where nobody can say."""
    done = storm.frazil("status", stream, "--json")
    with contextlib.suppress(ValueError, LookupError, TypeError):
        (status,) = json.loads(done.stdout)
        return int(status["partitions"][partition]["next_offset"])
    return 0


def maintain(storm: Storm, stream: str, rnd: random.Random) -> None:
    """Compact, expire and remove orphans beside the runs."""
    while not storm.is_over:
        storm.rest(rnd.uniform(20, 60))
        done = storm.frazil("maintain", stream, "--no-dry-run")
        storm.outcomes["maintenance" if done.returncode == 0 else "maintenance refused"] += 1
        storm.expect_next_step(stream, "maintenance", done)


def name_table(stream: str) -> str:
    """Name the table that holds the stream's records."""
    return f"lab.{stream}__changes" if stream in STATES else f"lab.{stream}"


def roll_back(storm: Storm, stream: str, rnd: random.Random) -> None:
    """Set main back as others do, then let a named person answer."""
    while not storm.is_over:
        storm.rest(rnd.uniform(60, 150))
        with contextlib.suppress(Exception):  # an outage, or no ancestor yet: next time
            properties = storm.facts["catalog"]["properties"]
            name = rnd.choice([name_table(stream), f"lab.{stream}"])
            table = load_catalog("lake", **properties).load_table(name)  # type: ignore[arg-type]
            head = table.current_snapshot()
            for _ in range(rnd.randrange(1, 4)):
                if head and head.parent_snapshot_id:
                    head = table.snapshot_by_id(head.parent_snapshot_id)
            if head is not None:
                table.manage_snapshots().rollback_to_snapshot(head.snapshot_id).commit()
                storm.strike(stream, "rolled back by others")
                storm.note(f"{name} rolled back to {head.snapshot_id}")
        answer(storm, stream)


def answer(storm: Storm, stream: str) -> None:
    """Return a person's answer to a rollback; without one there is nothing to decide."""
    done = storm.frazil("recover", stream, "--reingest", *PERSON, "--no-dry-run")
    storm.outcomes["answered" if done.returncode == 0 else "nothing to answer"] += 1


def kill_servers(storm: Storm, _stream: str, rnd: random.Random) -> None:
    """Kill the broker or the Spark server; the supervisor starts them again."""
    while not storm.is_over:
        storm.rest(rnd.uniform(70, 160))
        part = rnd.choice(["kafka", "spark_connect"])
        status = storm.frazil("stack", "status", "--json")
        with contextlib.suppress(ValueError, KeyError, ProcessLookupError):
            pid = json.loads(status.stdout)["parts"][part]["pid"]
            if pid and not storm.is_over:
                os.kill(pid, signal.SIGKILL)
                storm.note(f"killed {part}")
                for stream in STREAMS:
                    storm.strike(stream, f"{part} killed")


def calm_down(storm: Storm) -> None:
    """After the storm: answer what is open, and run until nothing is left to read."""
    for stream in STREAMS:
        failures = 0
        answer(storm, stream)
        while True:
            done = storm.frazil("run", stream, "--json")
            storm.count(stream, done)
            if "next_offsets" in done.stdout:
                break
            failures += done.returncode != 0
            if failures > QUIET_RUNS:
                storm.findings.append(f"{stream}: does not recover: {done.stderr}")
                break
            time.sleep(5 if done.returncode else 0)


def judge(storm: Storm) -> list[Mapping[str, object]]:
    """Let both audits recompute every table."""
    lines: list[Mapping[str, object]] = []
    for stream in STREAMS:
        report = audit_table(
            storm.facts["catalog"]["properties"],  # type: ignore[arg-type]
            "lake",
            name_table(stream),
            storm.facts["kafka"]["bootstrap"],
            stream,
        )
        storm.findings += [f"{stream}: {finding}" for finding in report.findings]
        if stream in STATES:
            judge_state(storm, stream)
        own = storm.frazil("audit", stream, "--json")
        if own.returncode:
            storm.findings.append(f"{stream}: frazil audit: {own.stdout}{own.stderr}")
        lines.append({"stream": stream, **report.facts})
    return lines


def judge_state(storm: Storm, stream: str) -> None:
    """Merge what is left; let the auditor without product code fold the changes again."""
    merged = storm.frazil("merge", stream)
    with load_catalog("lake", **storm.facts["catalog"]["properties"]) as catalog:  # type: ignore[arg-type]
        found = audit_state_table(catalog, STATES[stream])
        tables = (catalog.load_table(name) for name in (f"lab.{stream}", name_table(stream)))
        rows, changes = (table.scan().to_arrow().to_pylist() for table in tables)
    storm.findings += [f"{stream}: {invariant}: {text}" for invariant, text in found]
    storm.outcomes[f"{stream}: rows of the state"] = len(rows)
    had_rows = {row["id"] for row in changes if row[STATES[stream].operation] != "d"}
    storm.outcomes[f"{stream}: keys deleted"] = len(had_rows - {row["id"] for row in rows})
    if STATES[stream].has_events:
        moved = {place_of(row) for row in changes if is_moved(row)}
        whole = [row for row in rows if row["doc"] is not None]  # filled from the old key
        storm.outcomes[f"{stream}: keys changed"] = sum(place_of(row) in moved for row in whole)
    if merged.returncode or not rows:
        storm.findings.append(f"{stream}: the state is not merged: {merged.stdout}{merged.stderr}")


def main(
    seed: Annotated[int, typer.Option(help="Decides what each actor does; 0 draws one.")] = 0,
    minutes: Annotated[float, typer.Option(help="How long the storm lasts.")] = 5.0,
) -> None:
    """Raise a storm and judge what it leaves."""
    seed = seed or secrets.randbelow(10**6)
    console = Console()
    console.print(f"chaos: SEED={seed} MINUTES={minutes:g}")
    with started_storm(minutes) as storm:
        actors: list[tuple[Callable[[Storm, str, random.Random], None], str]] = [
            (actor, stream)
            for stream in STREAMS
            for actor in (produce, ingest, overlap, replay, maintain, roll_back)
        ]
        actors.append((kill_servers, ""))
        threads = [
            threading.Thread(target=actor, args=(storm, stream, random.Random(f"{seed}-{i}")))
            for i, (actor, stream) in enumerate(actors)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(15)
            left = max(0, storm.until - time.monotonic())
            console.print(f"{left:5.0f} s left, {storm.outcomes['run: done']} runs done")
        calm_down(storm)
        lines = judge(storm)
        doubt(storm, minutes)
        report(console, storm, lines)
        sys.exit(1 if storm.findings else 0)


def doubt(storm: Storm, minutes: float) -> None:
    """Take a storm that hardly blew for a finding."""
    for needed in (*NEEDED, *(OF_LONG_STORMS if minutes >= LONG_MINUTES else ())):
        if not storm.outcomes[needed]:
            storm.findings.append(f"the storm proves little: never {needed!r}")


def report(console: Console, storm: Storm, lines: list[Mapping[str, object]]) -> None:
    """Print what happened and what was found."""
    grid = Grid("what", "times")
    for name, times in sorted(storm.outcomes.items()):
        grid.add_row(name, str(times))
    console.print(grid)
    for line in lines:
        console.print_json(json.dumps(line, default=str))
    if storm.recoveries:
        middle, longest = statistics.median(storm.recoveries), max(storm.recoveries)
        console.print(
            f"{len(storm.recoveries)} recoveries: median {middle:.0f} s, longest {longest:.0f} s"
        )
    if storm.findings:
        console.print("\n".join(storm.log[-200:]), markup=False)
    for finding in storm.findings:
        console.print(f"FOUND {finding}", markup=False)
    console.print(f"{len(storm.findings)} findings")


@contextlib.contextmanager
def started_storm(minutes: float) -> Iterator[Storm]:
    """Start a stack of its own, with streams and topics."""
    with tempfile.TemporaryDirectory(prefix="frazil-chaos-") as folder:
        home, streams = Path(folder, "home"), Path(folder, "streams")
        streams.mkdir()
        ports = ("KAFKA", "KAFKA_CONTROLLER", "SPARK", "AIRFLOW")
        environment = {
            **os.environ,
            **{f"FRAZIL_{name}_PORT": "0" for name in ports},
            "FRAZIL_HOME": str(home),
            "FRAZIL_STREAMS": str(streams),
            "FRAZIL_JARS": os.environ.get("FRAZIL_JARS", str(REPO / ".frazil" / "jars")),
            MIN_RECORDS_VARIABLE: "100",
        }
        command = [str(FRAZIL), "stack"]
        try:
            subprocess.run([*command, "up", "--only", "kafka,spark"], env=environment, check=True)
            facts = json.loads((home / "stack" / "stack.json").read_text())
            bootstrap = facts["kafka"]["bootstrap"]
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            for stream, sections in STREAMS.items():
                write_stream(streams, stream, sections)
                admin.create_topics([NewTopic(stream, 2, 1)])[stream].result(15)
            yield Storm(home, streams, environment, facts, time.monotonic() + minutes * 60)
        finally:
            subprocess.run([*command, "down"], env=environment, check=True)


def write_stream(folder: Path, stream: str, sections: Mapping[str, Mapping[str, object]]) -> None:
    """Write a stream that takes any share of bad records."""
    document = {
        "stream": stream,
        "owner": "chaos@example.org",
        "source": {"topic": stream},
        **sections,
        "table": {"name": f"lab.{stream}", **sections["table"]},
        "batch": {"max_records": 5000},
        "errors": {"max_bad_ratio": 1.0},
    }
    (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))


if __name__ == "__main__":
    typer.run(main)
