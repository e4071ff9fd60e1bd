"""Trimming takes replaced changes: in every random history the state is the fold of all changes."""

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from support.merge_model import Trimmed

from frazil.state_tables.trim_rules import sort_changes
from frazil.streams.models import Stream

ACTIONS = (*("ingest", "merge") * 10, *("redrive", "replay", "trim", "trim", "killed_trim") * 2)
ACTIONS += ("rollback", "roll_state_back", "killed_merge", "compact", "backfill")
RULES = {
    "base": 0,  # the newest change of each key below the cut stays
    "cut": 66,  # even if a newer one above the cut has replaced it
    "folded": 10,  # a state that has not folded what was trimmed folds all changes
    "newest_last": 105,  # the newest change of a key leaves after the others
    "letters": 94,  # a delete stays while an open dead letter lies below it
    "unfolded": 145,  # or one that was restored and is not folded yet
    "sequence": 21,  # and always where a sequence orders the changes
    "replays": 208,  # what lies below the cut is not replayed
    "backfills": 194,  # and nothing older is read
}
"""Rule → a seed whose history goes wrong without it."""


def run_history(seed: int, without: str = "") -> set[int]:
    """Return the keys that are wrong after a merge of a random history."""
    model = Trimmed(seed, without)
    for _ in range(80):
        action = model.random.choice(ACTIONS)
        getattr(model, action)()
        if action == "merge" and (wrong := model.find_wrong()):
            return wrong
    return set()


def test_the_state_is_the_fold_of_all_changes_in_every_history() -> None:
    seeds = random.sample(range(10**6), 150)

    assert {seed: wrong for seed in seeds if (wrong := run_history(seed))} == {}


@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_the_state_goes_wrong(rule: str) -> None:
    assert run_history(RULES[rule]) == set()
    assert run_history(RULES[rule], rule)


@pytest.mark.parametrize("name", ["_kafka.timestamp", "v"])
def test_changes_without_a_value_of_the_sequence_are_the_oldest(name: str) -> None:
    document = {
        "stream": "orders",
        "owner": "data-platform@example.org",
        "source": {"topic": "orders"},
        "order": {"sequence_by": [name]},
        "value": {"columns": {"id": "long!", "v": "long!" if name == "v" else "long"}},
        "table": {"name": "shop.orders", "mode": "upsert", "id_columns": ["id"]},
    }
    times = (None, datetime(1990, 1, 1, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC))
    rows = [
        {
            "id": 1,
            "v": None if time is None else time.year,
            "_kafka": {"topic": "t", "partition": 0, "offset": offset, "timestamp": time},
        }
        for offset, time in enumerate(times)
    ]

    order, is_newest = sort_changes(Stream.model_validate(document), pa.Table.from_pylist(rows))

    assert order.to_pylist() == [0, 2, 1]
    assert is_newest.tolist() == [False, False, True]
