"""Kill -9 at every named line, three seeds each: afterwards every record is there exactly once.

With `--sample`, as in `make test`: at a third of the lines, one seed each. The judge is
`auditor.py`, which shares no code with the product, and `frazil audit` beside it.
"""

import random
import re
import time
from pathlib import Path

import pytest
from conftest import REPO, Lab, good_values
from pyiceberg.catalog import load_catalog

from faults import judges, tally
from frazil.failpoints import FAILPOINTS
from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE

pytestmark = pytest.mark.stack
SEEDS = (1, 2, 3)
BAD: list[bytes | None] = [b"no json", b"", None, b'{"name": "no id"}', b'{"id": "text"}', b"[]"]
BY_WORKERS = ("stage.before-files",)
"""Reached only where Python workers write the rows of a batch."""
BLOCKING = tuple(name for name in FAILPOINTS if name.endswith("-block"))
EVOLVING = tuple(name for name in FAILPOINTS if name.endswith("-evolution"))
FIRST = ("plan.before-create-table", "plan.before-bootstrap", "plan.after-bootstrap")
"""What they lie around is done in a stream's first run alone."""
OTHER_STEPS = (
    *("seal.", "redrive.", "rollback.", "replay.", "decide.", "delete.", "erase."),
    *("expire.", "orphans.", "merge.", "trim.", "state.", "remove."),
)
"""Lines of what is no batch; they have tests of their own."""
PLAIN = tuple(
    name
    for name in FAILPOINTS
    if name not in BLOCKING + EVOLVING + FIRST and not name.startswith(OTHER_STEPS)
)


def seeded_values(seed: int) -> list[bytes | None]:
    """Mix good and bad records; the seed decides how many and where."""
    rnd = random.Random(seed)
    values = good_values(rnd.randrange(60, 240))
    for _ in range(rnd.randrange(3, 20)):
        values.insert(rnd.randrange(len(values)), rnd.choice(BAD))
    return values


def assert_exactly_once(lab: Lab) -> None:
    """Let the independent auditor and the product's own audit both recompute everything."""
    tally.counts["tables judged"] += 1
    judges.assert_exactly_once(lab)
    tally.counts["tables that held"] += 1


def kill_once(lab: Lab, failpoint: str, **extra: str) -> None:
    """Run a batch that dies at the failpoint, and see that it did."""
    run = lab.frazil("run", lab.stream, FRAZIL_FAILPOINT=failpoint, **extra)
    tally.counts[f"kill at {failpoint}"] += 1
    assert run.code in {-9, 1}, run.out + run.err
    assert run.code == -9 or "SIGKILL" in run.err, run.out + run.err


def mend(lab: Lab) -> None:
    """Let the next run find what the kill left."""
    started = time.monotonic()
    again = lab.frazil("run", lab.stream)
    assert again.code == 0, again.out + again.err
    tally.note_recovery(time.monotonic() - started)


@pytest.fixture
def seeds(sampled: bool) -> tuple[int, ...]:  # noqa: FBT001 - a fixture
    """Return the seeds of a line's kills: one of them in a sample."""
    return (random.choice(SEEDS),) if sampled else SEEDS


@pytest.mark.core
@pytest.mark.storm(5)
@pytest.mark.parametrize("failpoint", PLAIN)
def test_a1_a_kill_loses_nothing_and_doubles_nothing(
    lab: Lab, failpoint: str, seeds: tuple[int, ...]
) -> None:
    lab.write_stream(batch={"max_records": 1000})
    directly = {}
    if failpoint in BY_WORKERS:
        lab.write_stream(table={"name": lab.table})
        directly = {MIN_RECORDS_VARIABLE: "0"}
    lab.create_topic()

    for seed in seeds:
        lab.produce(seeded_values(seed))
        kill_once(lab, failpoint, **directly)
        mend(lab)

    lab.drain()
    assert_exactly_once(lab)


@pytest.mark.storm(1)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("failpoint", FIRST)
def test_a_kill_of_the_first_run_begins_a_stream_once(lab: Lab, failpoint: str, seed: int) -> None:
    lab.write_stream(batch={"max_records": 1000})
    lab.create_topic()
    lab.produce(seeded_values(seed))

    kill_once(lab, failpoint)

    lab.drain()
    assert_exactly_once(lab)


@pytest.mark.storm(1)
@pytest.mark.parametrize("failpoint", EVOLVING)
def test_a_kill_while_the_table_follows_its_file_adds_each_column_once(
    lab: Lab, failpoint: str, seeds: tuple[int, ...]
) -> None:
    lab.write_stream(batch={"max_records": 1000})
    lab.create_topic()
    lab.produce(good_values(5))
    lab.drain()
    columns = {"id": "long!", "name": "string", "amount": "double"}

    for seed in seeds:
        lab.produce(seeded_values(seed))
        columns |= {f"new{seed}": "string"}
        lab.write_stream(value={"columns": columns})
        kill_once(lab, failpoint)
        mend(lab)

    lab.drain()
    table = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)
    names = sorted(field.name for field in table.schema().fields)
    assert names == sorted([*columns, "_kafka"])
    assert_exactly_once(lab)


@pytest.mark.storm(1)
@pytest.mark.parametrize("failpoint", BLOCKING)
def test_a_kill_while_blocking_shows_nothing(
    lab: Lab, failpoint: str, seeds: tuple[int, ...]
) -> None:
    lab.write_stream(errors={"max_bad_records": 0}, batch={"max_records": 1000})
    lab.create_topic()

    for seed in seeds:
        rows_before = lab.rows
        lab.produce(seeded_values(seed))
        kill_once(lab, failpoint)
        blocked = lab.frazil("run", lab.stream)
        assert blocked.code == 1
        assert "max_bad_records is 0" in blocked.err
        assert lab.rows == rows_before
        waive_and_drain(lab, blocked.err)

    assert_exactly_once(lab)


def waive_and_drain(lab: Lab, blocked_text: str) -> None:
    """Waive what is blocked, as its error says, and publish exactly that."""
    found = re.search(r"--batch (\w+)", blocked_text)
    assert found is not None, blocked_text
    person = ("--by", "tests@example.org", "--reason", "known bad rollout", "--no-dry-run")
    assert lab.frazil("waive", lab.stream, "--batch", found[1], *person).code == 0
    lab.drain()


def test_every_failpoint_is_a_line_of_the_product() -> None:
    source = "".join(
        path.read_text()
        for folder in ("include/frazil", "spark_jobs")
        for path in Path(REPO, folder).rglob("*.py")
        if path.name != "failpoints.py"
    )

    named = set(re.findall(r'reach_failpoint\("([^"]+)"\)', source))

    assert named == set(FAILPOINTS)


def test_failpoints_are_off_unless_named(lab: Lab) -> None:
    lab.create_topic()
    lab.produce(good_values(10))

    run = lab.frazil("run", lab.stream, FRAZIL_FAILPOINT="")

    assert run.code == 0, run.err
