"""Every command on a stream with a state table: the state follows, it is told, or it is refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from support.lake import Lake, make_stream
from support.state_lake import Change, StateLake, make_state_lake

from frazil.errors import ConfigurationError, MissingTableError
from frazil.ledger import keys
from frazil.ledger.authors import Author
from frazil.ledger.coordinates import encode_coordinates
from frazil.ledger.recovery_point import LedgerEntry
from frazil.ledger.state import StreamState, encode_state
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.erasure import plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.maintenance.orphans import remove_orphans
from frazil.maintenance.row_expiry import expire_rows
from frazil.maintenance.snapshot_expiry import expire_snapshots
from frazil.migration.adoption import adopt_table
from frazil.migration.cluster_move import plan_move
from frazil.migration.messages import MoveRequest
from frazil.observability.audit import audit_stream
from frazil.observability.status import locate_key
from frazil.state_tables.merge import merge_changes
from frazil.state_tables.merge_rules import MergePlan, hash_rules, plan_merge
from frazil.state_tables.messages import MergeCounts, MergePosition
from frazil.workspace import Workspace
from frazil_cli.main import app

REPLACED = {"operation": "replace"}
ADDED = {keys.COORDINATES: encode_coordinates({}), keys.KIND: keys.REDRIVE}
OFFSETS = {"orders": (9, 0)}
"""After the change that is there."""
AT_GAP = StreamState(2, "gap", OFFSETS, {"orders": "topic-id-1"}, "cluster-1")
GAP = {keys.KIND: keys.GAP, keys.STREAM: "orders", keys.state_key("orders"): encode_state(AT_GAP)}
AFTER: Mapping[str, tuple[Mapping[str, str], str]] = {
    "run": ({keys.KIND: keys.INGEST, keys.RANGES: '{"orders":{"0":[0,1]}}'}, "added"),
    "replay-dead-letters": (ADDED, "added"),
    "maintain": (REPLACED, "nothing"),
    "replay": ({keys.KIND: keys.REPLAY}, "all"),
    "backfill": ({keys.KIND: keys.BACKFILL}, "all"),
    "recover": ({keys.KIND: keys.REWIND}, "all"),
    "accept-gap": (GAP, "nothing"),
    "erase": ({keys.KIND: keys.ERASE}, "all"),
    "expire-rows": ({keys.KIND: keys.TRIM, keys.FOLDED: "0"}, "nothing"),
}
"""Command → the snapshot that it leaves in the change table, and what the next merge folds."""
REFUSED = {"adopt", "move-cluster"}
MERGES = {"merge"}
TOLD = {"status", "snapshots", "where", "audit", "verify-source", "timeline", "streams", "cost"}
"""They tell of the state table."""
OF_CHANGES = {"plan", "waive", "review-schema", "dead-letters", "compare", "readiness"}
"""They concern the change table alone."""
OF_NO_TABLE = {"doctor", "drill", "airflow", "stack"}


@pytest.fixture
def lake(tmp_path: Path) -> StateLake:
    lake = make_state_lake(StateLake, tmp_path, "orders")
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    return lake


def test_every_command_is_in_the_matrix() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    listed = (AFTER.keys(), REFUSED, MERGES, TOLD, OF_CHANGES, OF_NO_TABLE)

    assert sorted(commands) == sorted(name for names in listed for name in names)


def plan_after(lake: StateLake, *summaries: Mapping[str, str]) -> MergePlan | None:
    """Plan the merge after new snapshots of the change table; all others are folded."""
    known = lake.history
    assert known.head is not None
    position = MergePosition(
        snapshot_id=known.head,
        table_uuid=known.table_uuid,
        rules=hash_rules(lake.stream),
        id_columns=("id",),
        memory="m",
        counts=MergeCounts.model_validate(dict.fromkeys(MergeCounts.model_fields, 0)),
    )
    entries = dict(known.entries)
    for number, summary in enumerate(summaries, 1):
        entries[number] = LedgerEntry(number, number - 1 or known.head, 10**13, summary)
    after = replace(known, head=len(summaries), entries=entries)

    return plan_merge(after, lake.stream, position)


@pytest.mark.parametrize("command", AFTER)
def test_the_next_merge_follows(lake: StateLake, command: str) -> None:
    summary, expected = AFTER[command]

    plan = plan_after(lake, summary)

    if command == "replay-dead-letters":
        assert plan is None  # no dead letter was restored
    elif expected == "nothing":
        assert plan is None
    else:
        assert plan is not None
        assert (plan.added is None) == (expected == "all")


@pytest.mark.parametrize(
    ("epoch", "next_offset"), [(3, 9), (2, 1)], ids=["a batch was lost", "a redrive was lost"]
)
def test_a_gap_that_lost_published_changes_folds_all(
    lake: StateLake, epoch: int, next_offset: int
) -> None:
    state = replace(AT_GAP, epoch=epoch, offsets={"orders": (next_offset, 0)})

    plan = plan_after(lake, {**GAP, keys.state_key("orders"): encode_state(state)})

    assert plan is not None
    assert (plan.added, plan.reason) == (None, "gap snapshot 1 of the change table")


def test_a_gap_of_a_topic_that_was_never_read_asks_for_nothing(lake: StateLake) -> None:
    topic_ids = {"orders": "topic-id-1", "refunds": "old"}
    state = replace(AT_GAP, offsets={**OFFSETS, "refunds": (0,)}, topic_ids=topic_ids)
    after = replace(state, epoch=3, topic_ids={**topic_ids, "refunds": "new"})

    gaps = [{**GAP, keys.state_key("orders"): encode_state(each)} for each in (state, after)]

    assert plan_after(lake, *gaps) is None


def test_an_adoption_is_refused_with_what_to_do_instead(lake: StateLake) -> None:
    work = Workspace(lake.stream, lake.folder, "test")

    with pytest.raises(ConfigurationError, match="new table name") as refused:
        adopt_table(work, Author("jane@example.org", "request 12"))
    assert "cannot follow an adoption" in refused.value.facts


def test_a_move_is_refused_with_what_to_do_instead(lake: StateLake) -> None:
    work = Workspace(lake.stream, lake.folder, "test")

    with pytest.raises(ConfigurationError, match="a table name of its own") as refused:
        plan_move(work, MoveRequest(stream="orders"))
    assert "offsets start over" in refused.value.facts


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Open a stream that has not begun; its columns come from a registry, and there is none."""
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    stream = make_stream(
        value={"convert": "by_schema_id", "transform": "flatten_debezium"},
        table={"name": "demo.t", "mode": "upsert", "id_columns": "_from_debezium_key_"},
        order="kafka",
    )
    work = Workspace(stream, tmp_path, "test")
    vars(work)["store"] = Lake(tmp_path, stream).store
    return work


@pytest.mark.parametrize("days", [None, 1])
def test_maintenance_of_a_stream_that_has_not_begun_needs_no_registry(
    captured: Workspace, days: int | None
) -> None:
    changes = captured.stream.changes.model_copy(update={"keep_days": days})
    stream = captured.stream.model_copy(update={"changes": changes})
    work = captured.with_stream(stream, stream)

    report = expire_rows(work)

    assert (report.before.exists, report.rows, report.trimmed, report.problem) == (False, 0, 0, "")
    assert not any(table.before.exists for table in compact_table(work).tables)
    for done in (expire_snapshots(work), remove_orphans(work)):
        assert not any(table.exists for table in done.tables)


BY_KEY = ErasureRequest(stream="orders", keys=("id=1",))
READ: list[Callable[[Workspace], object]] = [
    audit_stream,
    merge_changes,
    lambda work: plan_erasure(work, BY_KEY),
    lambda work: locate_key(work, ["id=1"]),
]


@pytest.mark.parametrize("read", READ, ids=["audit", "merge", "erase", "where"])
def test_what_reads_a_stream_that_has_not_begun_names_the_missing_table(
    captured: Workspace, read: Callable[[Workspace], object]
) -> None:
    with pytest.raises(MissingTableError, match=r"has no table demo\.t"):
        read(captured)
