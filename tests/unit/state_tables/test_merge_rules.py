"""Which changes a merge folds: in every random history the state is the fold of its changes."""

import json
import random

import pytest
import yaml
from support.merge_model import NONE, STREAM, Merging, make_stream

from frazil.errors import MergeHaltedError
from frazil.ledger import keys
from frazil.ledger.offsets import OffsetRange, encode_ranges
from frazil.ledger.recovery_point import History, LedgerEntry
from frazil.state_tables.merge_rules import (
    MergePlan,
    describe_disagreement,
    find_position,
    has_position,
    hash_rules,
    plan_merge,
    require_compacted,
    require_mergeable,
)
from frazil.state_tables.messages import MergeCounts, MergePosition, MergeResult
from frazil.streams.models import Stream

NO_COUNTS = MergeCounts.model_validate(dict.fromkeys(MergeCounts.model_fields, 0))
BY_TIME = "`order: {sequence_by: [_kafka.timestamp]}`"
BY_LOG = "`order: {sequence_by: _source.lsn}`"
UPSERT = {"name": "shop.orders", "mode": "upsert", "id_columns": ["id"]}
OWN = "`order: {sequence_by: [column]}`"
ACTIONS = (*("ingest", "merge") * 10, "redrive", "replay", "backfill", "compact", "rollback")
ACTIONS += ("redrive", "roll_state_back", "accept_gap", *("killed_merge", "skip") * 3)


def run_history(seed: int, *, careless: bool = False) -> set[int]:
    """Return the keys that are wrong after a merge of a random history."""
    model = Merging(seed, careless=careless)
    for _ in range(60):
        action = model.random.choice(ACTIONS)
        getattr(model, action)()
        if action == "merge" and (wrong := model.find_wrong()):
            return wrong
    return set()


def test_the_state_is_the_fold_in_every_history() -> None:
    seeds = random.sample(range(10**6), 150)

    assert {seed: wrong for seed in seeds if (wrong := run_history(seed))} == {}


def test_some_merges_of_the_histories_are_sliced() -> None:
    model = Merging(1)
    for _ in range(300):
        getattr(model, model.random.choice(ACTIONS))()

    assert model.slices > 0


def test_without_a_rebuild_after_other_snapshots_the_state_goes_wrong() -> None:
    assert any(run_history(seed, careless=True) for seed in range(20))


def entries_of(*snapshots: tuple[int, int | None, dict[str, str]]) -> History:
    entries = {number: LedgerEntry(number, parent, number, s) for number, parent, s in snapshots}
    return History("shop.c__changes", "uuid", snapshots[-1][0], entries, {})


def position_at(snapshot_id: int, **changes: object) -> MergePosition:
    plain = MergePosition(
        snapshot_id=snapshot_id,
        table_uuid="uuid",
        rules=hash_rules(STREAM),
        id_columns=("id",),
        memory="m",
        counts=NONE,
    )
    return plain.model_copy(update=changes)


INGEST = {keys.KIND: keys.INGEST, keys.RANGES: encode_ranges({"t": {0: OffsetRange(3, 7)}})}
FURTHER = {keys.KIND: keys.INGEST, keys.RANGES: encode_ranges({"t": {0: OffsetRange(7, 9)}})}


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ({"operation": "append"}, "append snapshot 2"),
        ({"operation": "delete"}, "delete snapshot 2"),
        *(({keys.KIND: kind}, f"{kind} snapshot 2") for kind in sorted(keys.CHANGE_KINDS)),
        *(
            ({keys.KIND: kind}, f"{kind} snapshot 2")
            for kind in (keys.REWIND, keys.GAP, keys.ADOPT)
        ),
    ],
)
def test_what_does_more_than_add_rows_is_folded_from_all_changes(
    summary: dict[str, str], why: str
) -> None:
    history = entries_of((1, None, INGEST), (2, 1, summary), (3, 2, FURTHER))

    plan = plan_merge(history, STREAM, position_at(1))

    assert plan is not None
    assert (plan.added, why in plan.reason) == (None, True)


def test_touching_batches_are_one_run_and_compactions_are_stepped_over() -> None:
    quiet = {"operation": "replace"}
    history = entries_of((1, None, {}), (2, 1, INGEST), (3, 2, quiet), (4, 3, FURTHER))

    assert plan_merge(history, STREAM, position_at(1)) == MergePlan(4, {"t": {0: [(3, 9)]}})
    assert plan_merge(history, STREAM, position_at(4)) is None


@pytest.mark.parametrize(
    ("changes", "stream", "says"),
    [
        ({"table_uuid": "other"}, STREAM, "dropped and created again"),
        ({"id_columns": ("number",)}, STREAM, "the key of its state table is number"),
        ({}, make_stream(), "order, cdc_field or deletes changed"),
    ],
)
def test_another_table_key_or_rule_halts(
    changes: dict[str, object], stream: Stream, says: str
) -> None:
    with pytest.raises(MergeHaltedError, match=says):
        plan_merge(entries_of((1, None, INGEST)), stream, position_at(1, **changes))


def test_a_position_is_inherited_and_an_unreadable_one_halts() -> None:
    key = keys.merge_key("customers")
    kept = position_at(7)
    history = entries_of((1, None, {key: kept.encode()}), (2, 1, {"operation": "replace"}))

    assert find_position(history, "customers") == kept
    newer = json.dumps({**json.loads(kept.encode()), "floors": True})
    with pytest.raises(MergeHaltedError, match="cannot read"):
        find_position(entries_of((1, None, {key: newer})), "customers")


def test_a_rebuild_needs_only_what_it_knows_of_a_position() -> None:
    key, kept = keys.merge_key("customers"), position_at(7)
    newer = json.dumps({**json.loads(kept.encode()), "floors": True})

    history = entries_of((1, None, {key: newer}))
    assert find_position(history, "customers", rebuild=True) == kept
    for text in ('{"v": 2}', "["):
        history = entries_of((1, None, {key: text}))
        with pytest.raises(MergeHaltedError, match="cannot read") as refusal:
            find_position(history, "customers", rebuild=True)
        assert "--rebuild" not in refusal.value.next_step
        assert has_position(history, "customers")


@pytest.mark.parametrize(
    ("counts", "summary", "says"),
    [
        ({"changes": 3, "inserted": 2, "stale": 1}, {"inserted": "2"}, ""),
        ({"changes": 3, "inserted": 2}, {}, "do not add up"),
        ({"changes": 2, "inserted": 2}, {"inserted": "1"}, "inserted 1, not 2"),
        ({"changes": 1, "deleted": 1}, {"matched-deleted": "0"}, "matched-deleted 0, not 1"),
    ],
)
def test_the_counts_add_up_and_agree_with_sparks(
    counts: dict[str, int], summary: dict[str, str], says: str
) -> None:
    named = {f"spark.merge-into.num-target-rows-{name}": n for name, n in summary.items()}

    found = describe_disagreement(NONE.model_copy(update=counts), named, marks=False, rebuilt=False)

    assert says in found
    assert bool(found) == bool(says)


@pytest.mark.parametrize(
    ("summary", "rebuilt", "says"),
    [
        ({"inserted": "3", "matched-updated": "4"}, False, ""),
        ({"inserted": "3", "matched-updated": "3"}, False, "Spark wrote 6 rows, not 7"),
        ({"inserted": "8"}, False, "Spark wrote 8 rows, not 7"),
        ({"added-records": "7"}, True, ""),
        ({"added-records": "6"}, True, "Spark wrote 6 rows, not 7"),
        ({}, True, "Spark wrote 0 rows, not 7"),
    ],
)
def test_marked_deletes_and_replaced_rows_are_counted_too(
    summary: dict[str, str], *, rebuilt: bool, says: str
) -> None:
    prefix = "" if rebuilt else "spark.merge-into.num-target-rows-"
    named = {prefix + name: count for name, count in summary.items()}
    counts = NONE.model_copy(
        update={"changes": 7, "inserted": 1, "updated": 1, "deleted": 2, "absent": 3}
    )

    assert describe_disagreement(counts, named, marks=True, rebuilt=rebuilt) == says
    assert "not 2" in describe_disagreement(
        counts, {"added-records": "7"}, marks=False, rebuilt=True
    )


@pytest.mark.parametrize(
    ("rows", "hidden", "waits"),
    [(3_000_000, 2_000_000, False), (3_000_001, 2_000_001, True), (900_000, 899_999, False)],
)
def test_a_merge_waits_where_compaction_is_far_behind(rows: int, hidden: int, waits: bool) -> None:  # noqa: FBT001
    summary = {"total-records": str(rows), "total-position-deletes": str(hidden)}
    history = entries_of((1, None, summary))

    if not waits:
        require_compacted("customers", history)
        return
    with pytest.raises(MergeHaltedError, match="compaction is behind") as refused:
        require_compacted("customers", history)
    assert "maintain customers --only compact" in refused.value.next_step


def test_changes_of_any_number_of_partitions_are_folded_alone() -> None:
    ranges = {"t": {number: OffsetRange(3, 7) for number in range(5_000)}}
    summary = {keys.KIND: keys.INGEST, keys.RANGES: encode_ranges(ranges)}

    plan = plan_merge(entries_of((1, None, INGEST), (2, 1, summary)), STREAM, position_at(1))

    assert plan is not None
    assert plan.added == {"t": {number: [(3, 7)] for number in range(5_000)}}


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"value": {"columns": {"id": "long!"}}}, [OWN, BY_TIME]),
        (
            {
                "value": {"columns": {"name": "string"}},
                "key": {"convert": "json", "columns": {"id": "long!"}},
                "table": {**UPSERT, "tombstones": "delete"},
            },
            [BY_TIME],
        ),
        ({}, [BY_LOG, BY_TIME]),
        ({"order": {"sequence_by": "_source.lsn"}}, [BY_TIME]),
        ({"order": {"sequence_by": "_source.ts_ms"}}, [BY_TIME]),
    ],
)
def test_each_order_that_a_halt_names_can_be_loaded(
    sections: dict[str, object], named: list[str]
) -> None:
    document = {
        "stream": "orders",
        "owner": "data-platform@example.org",
        "source": {"topic": "orders"},
        "value": {"transform": "flatten_debezium", "columns": {"id": "long!"}},
        "table": UPSERT,
    } | sections
    stream = Stream.model_validate(document)
    result = MergeResult(counts=NO_COUNTS, fault="partition", faulty=1, example="t:0:0-1")

    with pytest.raises(MergeHaltedError) as halted:
        require_mergeable(stream, result)

    text = halted.value.next_step
    assert [each for each in (OWN, BY_LOG, BY_TIME) if each in text] == named
    for each in (each for each in named if each != OWN):
        order = yaml.safe_load(each.strip("`"))["order"]
        assert Stream.model_validate(document | {"order": order}).sequence
