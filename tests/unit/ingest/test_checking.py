"""A failed check stores no value of a record, because no erasure would reach it."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from support.lake import Lake, append, make_stream

from frazil.errors import BudgetExceededError, QualityFailedError
from frazil.events import note_failure, read_notes
from frazil.iceberg.branches import create_branch, name_branch
from frazil.ingest.blocked_batches import explain_block, read_blocked
from frazil.ingest.checking import check_batch, judge_batch, require_within_budget
from frazil.ingest.messages import BatchPlan, PartitionCount, Staged
from frazil.ingest.snapshot_summaries import summarize_batch
from frazil.ingest.staging import compile_checks
from frazil.quality.suite_files import load_suite
from frazil.workspace import Workspace

TEXT, NUMBER = "marker-4711", 987_654_321
EXPECTATIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("expect_column_max_to_be_between", {"column": "id", "max_value": 1}),
    ("expect_column_median_to_be_between", {"column": "id", "max_value": 1}),
    ("expect_column_most_common_value_to_be_in_set", {"column": "name", "value_set": ["a"]}),
    ("expect_column_values_to_be_in_set", {"column": "name", "value_set": ["a"]}),
    ("expect_column_distinct_values_to_be_in_set", {"column": "name", "value_set": ["a"]}),
)


@pytest.fixture
def judged(work: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Open the stream with a suite that the planted values fail, and a timeline of its own."""
    folder = tmp_path / "streams"
    listed = [{"type": kind, "kwargs": kwargs} for kind, kwargs in EXPECTATIONS]
    document = json.dumps({"name": "strict", "expectations": listed, "meta": {}})
    opened = replace(work, stream=make_stream(quality={"suite": "strict"}), directory=folder)
    assert opened.suite_file is not None
    opened.suite_file.parent.mkdir(parents=True, exist_ok=True)
    opened.suite_file.write_text(document)
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    return opened


def stage_planted(lake: Lake, work: Workspace, waived: str | None) -> tuple[BatchPlan, Staged]:
    """Plan and stage two rows with the planted values, and count them as Spark would."""
    assert work.suite_file is not None
    suite_hash = load_suite(work.suite_file).hash
    plan = replace(lake, stream=work.stream).plan(2, 0, suite_hash=suite_hash)
    plan = plan.model_copy(update={"waived": waived})
    branch = name_branch(plan.stream, plan.base_epoch)
    head = create_branch(lake.store, plan.table, branch)
    rows = [
        {"id": NUMBER, "name": TEXT, "_kafka": {"topic": "orders", "partition": 0, "offset": o}}
        for o in range(2)
    ]
    append(lake.catalog, lake.table, rows, branch)
    count = PartitionCount(topic="orders", partition=0, rows_read=2, rows_good=2)
    figures = {
        metric.name: 2 if metric.sql.startswith("count(") else 0
        for metric in compile_checks(work).metrics
    }
    return plan, Staged(
        stream=plan.stream,
        batch_id=plan.batch_id,
        attempt=branch,
        snapshot_id=lake.table.metadata.refs[branch].snapshot_id,
        base_head=head,
        rows_read=2,
        rows_written=2,
        rows_quarantined=0,
        rows_skipped=0,
        partitions=(count,),
        metrics=figures,
    )


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_truncate_offers_only_what_the_stream_file_can_have(
    lake: Lake, work: Workspace, mode: str
) -> None:
    sections: dict[str, object] = {
        "value": {
            "convert": "json",
            "transform": "flatten_debezium",
            "columns": {"id": "long!" if mode == "upsert" else "long"},
        },
        "table": {"name": "demo.orders"},
    }
    if mode == "upsert":
        sections["table"] = {"name": "demo.orders", "mode": "upsert", "id_columns": ["id"]}
    work = replace(work, stream=make_stream(**sections))
    plan = lake.plan(2, 0)
    staged = Staged(
        stream="orders",
        batch_id=plan.batch_id,
        attempt="a",
        snapshot_id=None,
        base_head=1,
        rows_read=2,
        rows_written=1,
        rows_quarantined=1,
        rows_skipped=0,
        truncates=1,
    )

    with pytest.raises(BudgetExceededError, match="the source table was truncated") as caught:
        require_within_budget(work, plan, staged)

    applied = {**sections, "value": {**sections["value"], "truncate": "apply"}}  # type: ignore[dict-item]
    offers = "truncate: apply" in caught.value.next_step
    assert offers == (mode == "append")
    with nullcontext() if offers else pytest.raises(ValueError, match="truncate"):
        make_stream(**applied)


def find_values(*texts: str) -> list[str]:
    return [each for text in texts for each in (TEXT, str(NUMBER)) if each in text]


@pytest.mark.slow
def test_a_block_holds_no_value_of_a_record(lake: Lake, judged: Workspace) -> None:
    plan, staged = stage_planted(lake, judged, None)

    with pytest.raises(QualityFailedError) as caught:
        check_batch(judged, plan, staged)
    note_failure(caught.value, plan.stream, plan.table, "run-1")

    (event,) = read_notes()
    blocked = read_blocked(lake.table.properties, plan.stream)
    assert blocked is not None
    assert f"{len(EXPECTATIONS)} expectations" in caught.value.facts
    assert "(name)" in caught.value.facts
    stored = json.dumps(dict(lake.table.properties))
    texts = (stored, event.model_dump_json(), str(caught.value), str(explain_block(blocked)))
    assert find_values(*texts, staged.encode()) == []


@pytest.mark.slow
def test_a_waived_verdict_and_its_summary_hold_no_value_of_a_record(
    lake: Lake, judged: Workspace
) -> None:
    plan, staged = stage_planted(lake, judged, "jane: known")

    verdict = judge_batch(judged, plan, staged)

    failed = [result for result in verdict.results if not result.success]
    assert len(failed) == len(EXPECTATIONS)
    summary = summarize_batch(plan, staged, verdict, "run-1")
    assert find_values(verdict.encode(), json.dumps(summary)) == []
