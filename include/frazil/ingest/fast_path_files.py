"""Files that Spark's Python workers wrote, and how they are staged.

They join the attempt's branch in one snapshot with whatever Spark wrote itself, so that all later
steps see one staged snapshot, however its rows came about.
"""

from collections.abc import Mapping

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate

from frazil.errors import StageLostError, StageStaleError
from frazil.iceberg import commits
from frazil.iceberg.catalog import TableStore, translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.ingest.fast_path import read_location
from frazil.ingest.messages import BatchPlan


def stage_fast_path_files(
    store: TableStore, plan: BatchPlan, branch: tuple[str, int], paths: tuple[str, ...]
) -> None:
    """Put the workers' files into the attempt's one staged snapshot, on the head it began from.

    Raises:
        StageStaleError: the table's layout changed while the workers wrote.
        StageLostError: a file is no Parquet file.
        CommitContentionError, UnavailableError: nothing is visible; a later run stages afresh.
    """
    retry_commit(
        f"staging {len(paths)} files on branch {branch[0]} of {plan.table}",
        lambda: _try_stage(store, plan, branch, paths),
    )


def _try_stage(
    store: TableStore, plan: BatchPlan, branch: tuple[str, int], paths: tuple[str, ...]
) -> None:
    attempt, base_head = branch
    table = store.load(plan.table)
    ref = table.metadata.refs.get(attempt)
    if ref is None:
        return  # the stage is lost; who looks for it next says so
    _require_same_layout(table, plan)
    with translated_errors(f"reading branch {attempt} of {plan.table}"):
        is_begun = ref.snapshot_id != base_head
        written = commits.read_added_files(table, ref.snapshot_id) if is_begun else []
    if set(paths) <= {file.file_path for file in written}:
        return  # an earlier turn landed without an answer
    with translated_errors(f"describing the staged files of {table.name()}"):
        files = [*written, *[describe_file(table, path) for path in paths]]
        added = commits.build_append(_from_head(table, attempt, base_head), {}, files, attempt)
    updates: list[TableUpdate] = [added, commits.set_branch(attempt, added.snapshot.snapshot_id)]
    if ref.snapshot_id != base_head:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=[ref.snapshot_id]))
    commit_once(store, table, {attempt: ref.snapshot_id}, updates)


def _require_same_layout(table: Table, plan: BatchPlan) -> None:
    """Refuse files that were written for another schema or partitioning (E12)."""
    now = table.metadata.current_schema_id, table.metadata.default_spec_id
    if now != (plan.schema_id, plan.spec_id):
        raise StageStaleError(
            f"batch {plan.batch_id}: {plan.table} has schema {now[0]} and spec {now[1]} now, the "
            f"rows were written for schema {plan.schema_id} and spec {plan.spec_id}",
            "run again: the next run plans and stages afresh",
        )


def _from_head(table: Table, attempt: str, head: int) -> Table:
    """Give the table as it was when the attempt began: its branch at the head, no rows yet."""
    begun: SnapshotRef = table.metadata.refs[attempt].model_copy(update={"snapshot_id": head})
    refs = {**table.metadata.refs, attempt: begun}
    metadata = table.metadata.model_copy(update={"refs": refs})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def describe_file(table: Table, path: str) -> DataFile:
    """Describe a Parquet file by its own footer, as Iceberg's writers do."""
    source = table.io.new_input(path)
    mapping = parquet_path_to_id_mapping(table.schema())
    try:
        with source.open() as stream:
            footer = pq.ParquetFile(stream).metadata
        described = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(table.schema(), table.properties),
            parquet_column_mapping=mapping,
        )
        place = read_location(table, footer, described)
    except ValueError as error:
        raise StageLostError(
            f"{path} was written for {'.'.join(table.name())} and is no Parquet file of one of its "
            f"partitions: {error}",
            "run again: the next run plans and stages afresh",
        ) from error
    statistics = described.to_serialized_dict()
    for field_id in find_unbounded(footer, mapping):
        statistics["lower_bounds"].pop(field_id, None)
        statistics["upper_bounds"].pop(field_id, None)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=place,
        file_size_in_bytes=len(source),
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )


def find_unbounded(footer: pq.FileMetaData, mapping: Mapping[str, int]) -> set[int]:
    """Find the columns that have no bounds in some row group although there are values.

    The writer leaves bounds out where a value is long; those of the other row groups are not the
    file's, and readers would skip rows that are there.
    """
    unbounded = set()
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            chunk = footer.row_group(group).column(number)
            found = chunk.statistics
            is_empty = found is not None and found.null_count == chunk.num_values
            if (found is None or not found.has_min_max) and not is_empty:
                unbounded.add(mapping[chunk.path_in_schema])
    return unbounded
