"""`plan`, `run` and `merge`: preview the next batch, ingest it, merge its changes."""

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.ingest.messages import NothingToRead, Published
from frazil.messages import count_noun
from frazil_cli.output import (
    Json,
    StreamName,
    cli_run_id,
    console,
    format_ranges,
    print_json,
    report_progress,
)

if TYPE_CHECKING:
    from frazil.workspace import Workspace


def plan(stream: StreamName, as_json: Json = False) -> None:
    """Show the offset ranges of the next batch; nothing is changed.

    Example: frazil plan flights
    """
    from frazil.ingest.pipeline import preview_next_batch
    from frazil.workspace import open_workspace

    planned = preview_next_batch(open_workspace(stream, cli_run_id()))
    if as_json:
        print_json(planned)
    elif isinstance(planned, NothingToRead):
        console.print(f"{stream}: no new records; the table is at epoch {planned.epoch}")
    else:
        console.print(f"{stream}: batch {planned.batch_id}, after epoch {planned.base_epoch}")
        console.print(format_ranges(planned.ranges), markup=False)


def run(stream: StreamName, as_json: Json = False) -> None:
    """Ingest one batch without Airflow: plan, stage, check, publish.

    Then merge, if the stream has a state table.

    Example: frazil run flights
    """
    batch = run_one_batch(stream)
    if as_json:
        print_json(batch)
    elif isinstance(batch, NothingToRead):
        console.print(f"{stream}: no new records; the table is at epoch {batch.epoch}")
    else:
        console.print(
            f"{stream}: {batch.outcome}: "
            f"{count_noun(batch.rows_written, 'row')}, "
            f"{count_noun(batch.rows_quarantined, 'dead letter')}, {batch.rows_skipped} skipped; "
            f"snapshot {batch.snapshot_id} of {batch.table}",
            markup=False,
        )
        console.print(format_ranges(batch.ranges), markup=False)
        if batch.warning:
            console.print(f"Warning: {batch.warning}", markup=False)


def merge(
    stream: StreamName,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild", help="Fold all changes again and replace the state table's rows."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Merge new changes into the state table of a stream with `mode: upsert`.

    Example: frazil merge customers
    """
    from frazil.events import noted_failures
    from frazil.state_tables.merge import merge_changes
    from frazil.workspace import open_workspace

    started = time.monotonic()
    work = open_workspace(stream, cli_run_id())
    with noted_failures(work):
        report = partial(report_progress, started=started)
        merged = merge_changes(work, rebuild=rebuild, report=report)
    if as_json:
        print_json(merged)
    else:
        console.print(f"{stream}: {merged.text}", markup=False)


def run_one_batch(stream: str) -> Published | NothingToRead:
    """Run the four steps in this process; print a progress line after each."""
    from frazil.events import noted_failures
    from frazil.ingest.checking import check_batch
    from frazil.ingest.pipeline import plan_next_batch, publish_staged
    from frazil.ingest.staging import stage_batch
    from frazil.workspace import open_or_find_workspace

    started = time.monotonic()
    work = open_or_find_workspace(stream, cli_run_id())
    with noted_failures(work):
        planned = plan_next_batch(work)
        if isinstance(planned, NothingToRead):
            _merge(work, started)
            return planned
        report_progress(f"planned batch {planned.batch_id}", started)
        staged = stage_batch(work, planned)
        report_progress(
            f"staged {count_noun(staged.rows_written, 'row')} on branch {staged.attempt}", started
        )
        verdict = check_batch(work, planned, staged)
        report_progress(f"checked: {verdict.outcome}", started)
        published = publish_staged(work, planned, staged, verdict)
        report_progress(f"{published.outcome.lower()} as snapshot {published.snapshot_id}", started)
        _merge(work, started)
        return published


def _merge(work: "Workspace", started: float) -> None:
    """Merge where the stream has a state table that follows every batch."""
    if work.stream.table.state is None or work.stream.merge.schedule == "manual":
        return
    from frazil.ledger.usage import read_and_reset_usage
    from frazil.state_tables.merge import merge_changes

    read_and_reset_usage()  # the batch has already counted its usage
    report = partial(report_progress, started=started)
    report(merge_changes(work, report=report).text)
