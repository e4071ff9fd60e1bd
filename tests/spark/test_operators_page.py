"""The operator's page is typed in as it stands, on real parts: each command does what it says."""

import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from conftest import REPO, Lab, good_values
from faults.judges import assert_audited
from faults.legacy import VALUES, Legacy
from pyiceberg.catalog import Catalog, load_catalog
from support.foreign_tables import WRITERS, ForeignTable, Row, Writer
from support.forked import Run

pytestmark = pytest.mark.stack
PAGE = (REPO / "docs" / "operate.md").read_text()
ELSEWHERE = (
    "frazil stack",
    "frazil drill ",
    "frazil airflow",
    "kafka_old",
    " events",
    " customers",
    " shop",
)
"""Commands with tests of their own: stacks, brokers, routes, state tables, topic patterns."""
DECISIONS = ("frazil waive", "frazil accept-gap", "--reingest", "--skip", "--new-table")
LEGACY = ("frazil compare", "frazil adopt")
OTHERS = (*DECISIONS, *LEGACY, "frazil backfill", "frazil review-schema", " orders")
"""Commands that ask for a table in a state of their own: the tests below make it."""
NOTHING_TO_DO = {"move-cluster": "already reads"}
"""Refused by a stream that nobody moved, and nothing is written."""


def read_commands(*words: str) -> list[str]:
    """List each of the page's commands that have one of the words once; without words, all."""
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    wanted = [line for line in lines if line.startswith("frazil ")]
    found = [line for line in wanted if not any(word in line for word in ELSEWHERE)]
    asked = [line for line in found if not words or any(word in line for word in words)]
    return [*dict.fromkeys(asked)]


ANSWERS = {
    "frazil status flights --json": '"retention_covers_seconds": ',
    "frazil status": "next offset",
    "frazil plan": "the table is at epoch",
    "frazil snapshots": "ingest",
    "frazil where": "snapshot ",
    "frazil audit": "holds",
    "frazil readiness": "schema decisions",
    "frazil timeline": "ingest",
    "frazil cost": "batches",
    "frazil streams": "owner",
    "frazil dead-letters": "malformed_json",
}
"""What the answer holds that the page promises, by how a command begins."""


def fill_in(command: str, lab: Lab, given: dict[str, str], between: datetime) -> list[str]:
    """Put the lab's stream and what is given in the place of the page's examples."""
    text = command
    for example, real in given.items():
        text = text.replace(example, real)
    text = re.sub(r"\b(flights|orders)\b", lab.stream, text)
    now = datetime.now(UTC)
    times = iter([now - timedelta(hours=1), now] if "--until" in text else [between])
    return shlex.split(re.sub(r"2026-01-31T\d\d:00:00Z", lambda _: next(times).isoformat(), text))


def type_in(lab: Lab, command: str, **given: str) -> Run:
    """Type one command in; see that it is done."""
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    done = lab.frazil(*fill_in(command, lab, given, hour_ago)[1:])
    assert done.code == 0, (command, done.out[-500:], done.err[-500:])
    return done


def run(lab: Lab, code: int = 0) -> Run:
    """Run one batch."""
    done = lab.frazil("run", lab.stream)
    assert done.code == code, done.out + done.err
    return done


def open_catalog(lab: Lab) -> Catalog:
    return load_catalog("lake", **lab.stack.catalog_properties)


def test_every_command_of_the_page_does_what_it_says(lab: Lab) -> None:
    lab.create_topic()
    lab.produce([*good_values(150), b"no json"])
    lab.drain()
    snapshot = lab.frazil("snapshots", lab.stream, "--json").json[0]["snapshot_id"]  # type: ignore[index]
    between = datetime.now(UTC)
    lab.produce(good_values(40, start=150))
    lab.drain()
    commands = [c for c in read_commands() if not any(word in c for word in OTHERS)]

    wrong = []
    given = {"--to-snapshot 4711": f"--to-snapshot {snapshot}", "4711": "30", "100-200": "10-20"}
    for command in commands:
        done = lab.frazil(*fill_in(command, lab, given, between)[1:])
        refusal = next((text for word, text in NOTHING_TO_DO.items() if word in command), None)
        answer = next((text for word, text in ANSWERS.items() if command.startswith(word)), "")
        is_told = done.code == 0 and done.out and answer in done.out
        as_said = done.code == 1 and refusal in done.err if refusal else is_told
        if not as_said:  # a command that says nothing does not do what it says
            wrong.append((command, done.code, done.out[-300:], done.err[-500:]))

    assert wrong == []
    assert len(commands) > 30
    lab.drain()
    assert_audited(lab)


def test_what_a_person_decides_lets_the_stream_go_on(lab: Lab) -> None:
    lab.create_topic()
    lab.produce(good_values(40))
    run(lab)
    lab.produce([b"no json"] * 20)
    (batch,) = re.findall(r"--batch (\w{32})", run(lab, code=1).err)
    for command in read_commands("frazil waive"):
        type_in(lab, command, **{"1f2e…": batch})
    run(lab)
    lab.produce(good_values(20, start=40))
    lab.truncate(0, 35)
    run(lab, code=1)
    for command in read_commands("frazil accept-gap"):
        type_in(lab, command)
    run(lab)
    assert lab.rows == 55

    def roll_back() -> None:
        table = open_catalog(lab).load_table(lab.table)
        head = table.current_snapshot()
        table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()  # type: ignore[union-attr, arg-type]

    def drop() -> None:
        catalog = open_catalog(lab)
        table = catalog.load_table(lab.table)
        catalog.drop_table(lab.table)
        catalog.create_table(lab.table, table.schema(), partition_spec=table.spec())

    harm: dict[str, Callable[[], None]] = {
        "--reingest": roll_back,
        "--skip": roll_back,
        "--new-table": drop,
    }
    rows = []
    for word, break_table in harm.items():
        break_table()
        run(lab, code=1)
        type_in(lab, *read_commands(word))
        run(lab)
        rows.append(lab.rows)
    assert rows == [55, 40, 35]
    assert_audited(lab)


def test_a_backfill_reads_what_lies_below_the_beginning(lab: Lab) -> None:
    lab.create_topic()
    lab.produce(good_values(50))
    lab.write_stream(source={"topic": lab.topic, "start": "latest"})
    run(lab)
    assert lab.rows == 0

    shown, *_ = [type_in(lab, command).out for command in read_commands("frazil backfill")]

    assert "50" in shown
    assert lab.rows == 50
    assert_audited(lab)


def test_a_persons_answer_to_a_changed_stream_file(lab: Lab) -> None:
    columns = {"id": "long!", "name": "string", "amount": "double"}
    lab.create_topic()
    run(lab)
    look, accept, stop = read_commands("frazil review-schema")

    lab.write_stream(value={"convert": "json", "columns": columns | {"name": "long"}})
    run(lab, code=1)
    assert "name" in type_in(lab, look).out
    type_in(lab, accept)
    run(lab)
    lab.write_stream(value={"convert": "json", "columns": columns | {"amount": "string"}})
    type_in(lab, stop)
    assert "not agreed with the owners" in run(lab, code=1).err


def test_what_must_go_goes(lab: Lab) -> None:
    lab.write_stream(
        value={
            "convert": "json",
            "columns": {"id": "long!", "customer_id": "long", "placed_at": "timestamptz"},
        },
        maintenance={"expire_rows": {"column": "placed_at", "keep_days": 92}},
    )
    lab.create_topic()
    today = datetime.now(UTC)
    lab.produce(
        [
            json.dumps({"id": n, "customer_id": n % 20, "placed_at": at.isoformat()}).encode()
            for n, at in enumerate(today - timedelta(days=5 * n) for n in range(40))
        ]
    )
    run(lab)
    keys = lab.folder / "keys.txt"
    keys.write_text("customer_id=3\ncustomer_id=4\n")

    for command in read_commands(" orders"):
        type_in(lab, command, **{"4711": "3", "keys.txt": str(keys)})

    kept = open_catalog(lab).load_table(lab.table).scan().to_arrow()["id"].to_pylist()
    assert sorted(kept) == [n for n in range(19) if n not in {3, 4}]
    assert_audited(lab)


OWN_NAMES = Writer(
    [pa.field("p", pa.int32()), pa.field("o", pa.int64())],
    lambda _topic, partition, offset, _ms: {"p": partition, "o": offset},
)


def leave_table(lab: Lab, name: str, writer: Writer, rows: list[Row]) -> Legacy:
    """Make a table as another writer leaves it."""
    made = ForeignTable(open_catalog(lab), name, writer, VALUES, lab.topic).create()
    return Legacy(lab, made.write(*rows))


def test_another_writers_table_is_compared_and_taken_over(lab: Lab) -> None:
    lab.write_stream(table={"name": lab.table})
    lab.create_topic()
    lab.produce(good_values(60))
    named = {f"legacy.{each}": f"legacy.{lab.stream}_{each}" for each in ("flights", "a", "b")}
    connect = WRITERS["Kafka Connect"]
    taken = leave_table(lab, lab.table, connect, [])
    rows = taken.read_topic()
    taken.write(rows[:40])
    for name, writer in (("flights", connect), ("a", connect), ("b", OWN_NAMES)):
        leave_table(lab, named[f"legacy.{name}"], writer, rows)

    look, take, by_name = read_commands("frazil adopt")
    type_in(lab, look)
    type_in(lab, take)
    run(lab)
    page = lab.folder / "comparison.html"
    for command in read_commands("frazil compare"):
        type_in(lab, command, **named, **{"comparison.html": str(page)})
    assert '<p class="verdict equal">equal</p>' in page.read_text()
    assert_audited(lab)

    lab.write_stream(table={"name": named["legacy.b"]})
    type_in(lab, by_name)
