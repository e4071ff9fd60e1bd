"""A thousand seeded change logs through Kafka, `frazil run` and its merge; a dictionary folds them.

Each log has keys of its own, so that a batch has changes of all logs. Between merges the history is
trimmed. `make test` draws twenty logs, others with each seed.
"""

import random

import pytest
from conftest import Lab
from faults.state_auditor import StateRules, audit_state_table
from pyiceberg.catalog import load_catalog
from support.change_events import send
from support.seeded_changes import Topic, draw
from support.state_lake import age_tables

from frazil.streams.loading import load_stream

pytestmark = pytest.mark.stack
LOGS, MERGES, TRIMS = 500, 20, 6
SAMPLED_LOGS, SAMPLED_MERGES = 50, 4
FEW_LOGS, FEW_MERGES = 10, 2
"""Of each order: `make test` has twenty logs."""
LOGS_ALONE, MERGES_ALONE = 20, 5


def trim(lab: Lab) -> None:
    """Let two days pass, and remove the changes that newer ones have replaced."""
    age_tables(lab.folder, load_stream(lab.folder, lab.stream), 2)
    trimmed = lab.frazil("expire-rows", lab.stream, "--no-dry-run", "--json", timeout=500)
    assert trimmed.code == 0, trimmed.out + trimmed.err
    assert trimmed.json["expire_rows"]["trimmed"] > 0


def find_differences(lab: Lab, by: str, logs: int, merges: int) -> list[str]:
    """Send changes of logs, merge, and compare the state with the dictionary's, `merges` times.

    Returns the seed with the merge after which rows differed, and what the last audit found.
    """
    first = random.randrange(10**6)
    dices = [random.Random(first + log) for log in range(logs)]
    topic = Topic(by == "sequence")
    order = {"sequence_by": ["at"]} if topic.by_sequence else "kafka"
    at = "long!" if topic.by_sequence else "long"
    table = {"name": lab.table, "mode": "upsert", "id_columns": ["id"], "cdc_field": "op"}
    columns = {"id": "long!", "op": "string", "at": at, "name": "string"}
    lab.write_stream(
        value={"convert": "json", "columns": columns},
        table={**table, "partition_by": ["bucket(id, 4)"]},
        order=order,
        batch={"max_records": 100_000},
        changes={"keep_days": 1},
    )
    lab.create_topic()
    sequence = ("at",) if topic.by_sequence else ()
    rules = StateRules(lab.stream, lab.table, ("id",), sequence, "op")

    for turn in range(merges):
        drawn = [each for log, dice in enumerate(dices) for each in draw(topic, dice, log, turn)]
        for partition in (0, 1):
            mine = [message for number, message in drawn if number == partition]
            send(lab.stack.bootstrap, lab.topic, mine, partition)
        run = lab.frazil("run", lab.stream, "--json", timeout=500)
        assert run.code == 0, run.out + run.err
        catalog = load_catalog("lake", **lab.stack.catalog_properties)
        found = catalog.load_table(lab.table).scan().to_arrow().to_pylist()
        rows = {row["id"]: row["name"] for row in found}
        findings = audit_state_table(catalog, rules) if turn == merges - 1 else []
        catalog.close()
        if (len(found), rows) != (len(rows), topic.rows):
            return [f"first seed {first}: rows differ after merge {turn}", *map(str, findings)]
        if turn % TRIMS == 0 and logs > 1:
            trim(lab)
    return [f"first seed {first}: {finding}" for finding in findings]


@pytest.mark.core
@pytest.mark.parametrize("by", ["sequence", "offset"])
def test_the_state_is_the_fold_of_ten_logs(
    lab: Lab, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))

    assert find_differences(lab, by, FEW_LOGS, FEW_MERGES) == []


@pytest.mark.long
@pytest.mark.storm(1)
@pytest.mark.parametrize("by", ["sequence", "offset"])
def test_the_state_is_the_fold_of_every_log(
    lab: Lab, by: str, monkeypatch: pytest.MonkeyPatch, *, sampled: bool
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    logs, merges = (SAMPLED_LOGS, SAMPLED_MERGES) if sampled else (LOGS, MERGES)

    assert find_differences(lab, by, logs, merges) == []


@pytest.mark.long
@pytest.mark.storm(1)
@pytest.mark.parametrize("log", range(LOGS_ALONE))
def test_the_state_is_the_fold_of_a_log_alone(
    lab: Lab, log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log has its own topic and table; some of its batches have no change at all."""
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    by = ("sequence", "offset")[log % 2]

    assert find_differences(lab, by, 1, MERGES_ALONE) == []
