"""Staging of the data files that Spark's Python workers wrote.

They are committed to the staging branch in one snapshot together with the rows that Spark wrote,
so that all later steps find one staged snapshot.
"""

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate

from frazil.errors import StageLostError, StageStaleError, hide_literals
from frazil.iceberg import commits
from frazil.iceberg.branches import reset_branch
from frazil.iceberg.catalog import TableStore, translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.parquet_files import build_data_file, read_statistics
from frazil.iceberg.table_view import TableView
from frazil.ingest.fast_path import read_partition
from frazil.ingest.messages import BatchPlan


def stage_fast_path_files(
    store: TableStore, plan: BatchPlan, branch: tuple[str, int], paths: tuple[str, ...]
) -> Table:
    """Add the workers' files to the branch's one staged snapshot; return the table after that.

    Raises:
        StageStaleError: the table's layout changed while the workers wrote.
        StageLostError: a file is not a Parquet file of the table.
        CommitContentionError, UnavailableError: nothing is visible; a later run stages again.
    """
    return retry_commit(
        f"staging {len(paths)} files on branch {branch[0]} of {plan.table}",
        lambda: _try_stage(store, plan, branch, paths),
    )


def _try_stage(
    store: TableStore, plan: BatchPlan, branch: tuple[str, int], paths: tuple[str, ...]
) -> Table:
    attempt, base_head = branch
    table = TableView(store, plan.table).table
    ref = table.metadata.refs.get(attempt)
    if ref is None:
        return table  # `find_staged_snapshot` raises for a branch that does not exist
    _require_same_layout(table, plan)
    with translated_errors(f"reading branch {attempt} of {plan.table}"):
        is_begun = ref.snapshot_id != base_head
        written = commits.read_added_files(table, ref.snapshot_id) if is_begun else []
    if set(paths) <= {file.file_path for file in written}:
        return table  # an earlier attempt was committed, but its response was lost
    with translated_errors(f"describing the staged files of {plan.table}"):
        files = [*written, *[describe_file(table, path) for path in paths]]
        added = commits.build_append(reset_branch(table, attempt, base_head), {}, files, attempt)
    updates: list[TableUpdate] = [added, commits.set_branch(attempt, added.snapshot.snapshot_id)]
    if ref.snapshot_id != base_head:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=[ref.snapshot_id]))
    return commit_once(store, table, {attempt: ref.snapshot_id}, updates)


def _require_same_layout(table: Table, plan: BatchPlan) -> None:
    """Raise if the files were written for another schema or partition spec."""
    now = table.metadata.current_schema_id, table.metadata.default_spec_id
    if now != (plan.schema_id, plan.spec_id):
        raise StageStaleError(
            f"batch {plan.batch_id}: {plan.table} has schema {now[0]} and spec {now[1]} now, the "
            f"rows were written for schema {plan.schema_id} and spec {plan.spec_id}",
            "run again: the next run plans and stages the batch again",
        )


def describe_file(table: Table, path: str) -> DataFile:
    """Return a Parquet file as an Iceberg data file, with statistics from its footer.

    Raises:
        StageLostError: it is not a Parquet file of one of the table's partitions.
    """
    source = table.io.new_input(path)
    try:
        with source.open() as stream:
            footer = pq.ParquetFile(stream).metadata
        statistics = read_statistics(table, footer)
        partition = read_partition(table, footer, statistics)
    except ValueError as error:
        raise StageLostError(
            f"{path} was written for {'.'.join(table.name())} and is not a Parquet file of one of "
            f"its partitions: {hide_literals(str(error))}",
            "run again: the next run plans and stages the batch again",
        ).suspect_record(type(error).__name__) from error
    place = (table.metadata.default_spec_id, partition)
    return build_data_file((path, len(source)), place, statistics)
