"""A thousand seeded change logs through Kafka, `frazil run` and its merge; a dictionary folds them.

Each log has keys of its own, so that a batch has changes of all logs. Between merges the history is
trimmed. `make test` draws thirty logs, others with each seed.
"""

import random

import pytest
from conftest import Lab
from faults.state_auditor import StateRules, audit_state_table
from pyiceberg.catalog import Catalog, load_catalog
from support.change_events import send
from support.seeded_changes import KEY_VALUES, Shape, Topic, draw, draw_shape
from support.state_lake import age_tables

from frazil.streams.loading import load_stream

pytestmark = pytest.mark.stack
ORDERS = (("at",), (), ("at", "tie"))
NAMES = ("sequence", "offset", "two sequences")
LOGS, MERGES, TRIMS = 340, 13, 6
SAMPLED_LOGS, SAMPLED_MERGES = 50, 4
FEW_LOGS, FEW_MERGES = 10, 2
"""Of each order: `make test` has thirty logs."""
LOGS_ALONE, MERGES_ALONE = 20, 5


def trim(lab: Lab) -> None:
    """Let two days pass, and remove the changes that newer ones have replaced."""
    age_tables(lab.folder, load_stream(lab.folder, lab.stream), 2)
    trimmed = lab.frazil("expire-rows", lab.stream, "--no-dry-run", "--json", timeout=500)
    assert trimmed.code == 0, trimmed.out + trimmed.err
    assert trimmed.json["expire_rows"]["trimmed"] > 0


def write_stream(lab: Lab, shape: Shape) -> None:
    """Write the stream file; the topic has two partitions."""
    columns = {
        "op": "string",
        "at": "long",
        "tie": "int",
        "name": "string",
        **{each: {"at": "long!", "tie": "int!"}[each] for each in shape.order},
        **dict.fromkeys(shape.ids, "boolean!"),
        "id": f"{shape.key}!",
    }
    lab.write_stream(
        value={"convert": "json", "columns": columns},
        table={
            "name": lab.table,
            "mode": "upsert",
            "id_columns": list(shape.ids),
            "cdc_field": "op",
            "partition_by": ["bucket(id, 4)"],
            "deletes": "mark" if shape.marks else "remove",
        },
        order={"sequence_by": list(shape.order)} if shape.order else "kafka",
        batch={"max_records": 100_000},
        changes={"keep_days": 1},
    )
    lab.create_topic()


def read_state(
    catalog: Catalog, lab: Lab, shape: Shape
) -> tuple[int, dict[tuple[object, ...], str | None]]:
    """Return the number of rows that are not marked as deleted, and key → name of them."""
    found = catalog.load_table(lab.table).scan().to_arrow().to_pylist()
    live = [row for row in found if not row.get("_deleted_at")]
    return len(live), {tuple(row[each] for each in shape.ids): row["name"] for row in live}


def find_differences(lab: Lab, shape: Shape, logs: int, merges: int) -> list[str]:
    """Send changes of logs, merge, and compare the state with the dictionary's, `merges` times.

    Returns the seed with the merge after which rows differed, and what the last audit found.
    """
    first = random.randrange(10**6)
    dices = [random.Random(first + log) for log in range(logs)]
    topic = Topic(shape)
    write_stream(lab, shape)
    rules = StateRules(lab.stream, lab.table, shape.ids, shape.order, "op", marks=shape.marks)

    for turn in range(merges):
        drawn = [each for log, dice in enumerate(dices) for each in draw(topic, dice, log, turn)]
        for partition in (0, 1):
            mine = [message for number, message in drawn if number == partition]
            send(lab.stack.bootstrap, lab.topic, mine, partition)
        run = lab.frazil("run", lab.stream, "--json", timeout=500)
        assert run.code == 0, run.out + run.err
        catalog = load_catalog("lake", **lab.stack.catalog_properties)
        count, rows = read_state(catalog, lab, shape)
        findings = audit_state_table(catalog, rules) if turn == merges - 1 else []
        catalog.close()
        if (count, rows) != (len(rows), topic.rows):
            return [f"{shape}, first seed {first}: rows differ after merge {turn}"]
        if turn % TRIMS == 0 and logs > 1:
            trim(lab)
    return [f"{shape}, first seed {first}: {finding}" for finding in findings]


@pytest.mark.core
@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
def test_the_state_is_the_fold_of_ten_logs(
    lab: Lab, order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    shape = draw_shape(random.Random(random.randrange(10**6)), order)

    assert find_differences(lab, shape, FEW_LOGS, FEW_MERGES) == []


@pytest.mark.long
@pytest.mark.storm(1)
@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
def test_the_state_is_the_fold_of_every_log(
    lab: Lab, order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, *, sampled: bool
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    logs, merges = (SAMPLED_LOGS, SAMPLED_MERGES) if sampled else (LOGS, MERGES)
    shape = draw_shape(random.Random(random.randrange(10**6)), order)

    assert find_differences(lab, shape, logs, merges) == []


@pytest.mark.long
@pytest.mark.storm(1)
@pytest.mark.parametrize("log", range(LOGS_ALONE))
def test_the_state_is_the_fold_of_a_log_alone(
    lab: Lab, log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log has its own topic and table; some of its batches have no change at all.

    The twenty have keys of each type, with deletes that are removed and marked.
    """
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    keys = list(KEY_VALUES)
    shape = Shape(
        keys[log % len(keys)],
        ORDERS[log % len(ORDERS)],
        marks=log // len(keys) % 2 == 1,
        has_two_keys=log % 5 == 4,
    )

    assert find_differences(lab, shape, 1, MERGES_ALONE) == []
