"""`plan` and `run`: the next batch, shown or done."""

import time

from frazil.ingest.messages import NothingToRead, Published
from frazil_cli.output import (
    Json,
    StreamName,
    cli_run_id,
    console,
    format_ranges,
    print_json,
    report_progress,
)


def plan(stream: StreamName, as_json: Json = False) -> None:
    """Show the next batch; nothing is written.

    Example: frazil plan flights
    """
    from frazil.ingest.pipeline import preview_next_batch
    from frazil.workspace import open_workspace

    planned = preview_next_batch(open_workspace(stream, cli_run_id()))
    if as_json:
        print_json(planned)
    elif isinstance(planned, NothingToRead):
        console.print(f"{stream}: nothing new in Kafka; the table is at epoch {planned.epoch}")
    else:
        console.print(f"{stream}: batch {planned.batch_id} on epoch {planned.base_epoch}")
        console.print(format_ranges(planned.ranges), markup=False)


def run(stream: StreamName, as_json: Json = False) -> None:
    """Run one batch through plan, stage, check and publish, without Airflow.

    Example: frazil run flights
    """
    outcome = run_one_batch(stream)
    if as_json:
        print_json(outcome)
    elif isinstance(outcome, NothingToRead):
        console.print(f"{stream}: nothing new in Kafka; the table is at epoch {outcome.epoch}")
    else:
        console.print(
            f"{stream}: {outcome.outcome} {outcome.rows_written} rows, "
            f"{outcome.rows_quarantined} dead letters, {outcome.rows_skipped} skipped, as snapshot "
            f"{outcome.snapshot_id} of {outcome.table}"
        )
        console.print(format_ranges(outcome.ranges), markup=False)


def run_one_batch(stream: str) -> Published | NothingToRead:
    """Run the four steps in this process, with a progress line for each."""
    from frazil.events import noted_failures
    from frazil.ingest.checking import check_batch
    from frazil.ingest.pipeline import plan_next_batch, publish_staged
    from frazil.ingest.staging import stage_batch
    from frazil.workspace import open_workspace

    started = time.monotonic()
    work = open_workspace(stream, cli_run_id())
    with noted_failures(work):
        planned = plan_next_batch(work)
        if isinstance(planned, NothingToRead):
            return planned
        report_progress(f"planned batch {planned.batch_id}", started)
        staged = stage_batch(work, planned)
        report_progress(f"staged {staged.rows_written} rows on {staged.attempt}", started)
        verdict = check_batch(work, planned, staged)
        report_progress(f"checked: {verdict.outcome}", started)
        published = publish_staged(work, planned, staged, verdict)
        report_progress(f"{published.outcome.lower()} as snapshot {published.snapshot_id}", started)
        return published
