"""Rewrite one table's small files, or its many manifests; rows stay the same.

spark-submit spark_jobs/compact_table.py request.json result.json
"""

from pyspark.sql import SparkSession

from frazil.maintenance.compaction_rules import (
    DELETE_RATIO,
    LARGE_RATIO,
    MIN_INPUT_FILES,
    PASS_BYTES,
    SMALL_RATIO,
)
from frazil.maintenance.messages import TableRequest, TableResult
from frazil.streams.column_types import quote_name
from frazil_spark.job import run_job
from frazil_spark.session_settings import apply_settings
from frazil_spark.table_procedures import call_procedure, read_counts, write_map


def compact_table(spark: SparkSession, request: TableRequest) -> TableResult:
    """Commit rewritten files as a `replace` snapshot; concurrent appends stay."""
    apply_settings(spark, request.session_conf)
    if request.action == "manifests":
        return rewrite_manifests(spark, request)
    return rewrite_files(spark, request)


def rewrite_files(spark: SparkSession, request: TableRequest) -> TableResult:
    """Merge small files to the target size, by partition, sorted as requested or as the table is.

    With `hidden_share` small files wait for a later pass: this one takes those with many deletes.
    One group at a time, so that a rewrite on a small server leaves cores to the next batch.
    """
    is_first, least = request.hidden_share is not None, SMALL_RATIO * request.target_bytes
    share = DELETE_RATIO if request.hidden_share is None else request.hidden_share
    options = {
        "target-file-size-bytes": str(request.target_bytes),
        "min-file-size-bytes": str(0 if is_first else int(least)),
        "max-file-size-bytes": str(int(LARGE_RATIO * request.target_bytes)),
        "min-input-files": str(MIN_INPUT_FILES),
        "max-concurrent-file-group-rewrites": "1",
        "partial-progress.enabled": str(request.partial_progress).lower(),
        "rewrite-all": str(request.rewrite_all).lower(),
        "delete-ratio-threshold": str(share),
        "remove-dangling-deletes": str(request.has_deletes).lower(),
    }
    strategy = {"strategy": "'binpack'"}
    if request.sort_by:
        order = ", ".join(f"{quote_name(name)} ASC NULLS FIRST" for name in request.sort_by)
        strategy = {"strategy": "'sort'", "sort_order": f"'{order}'"}
        # A sort writes the whole group to the local disk first.
        options["max-file-group-size-bytes"] = str(PASS_BYTES)
    arguments = {**strategy, "options": write_map(options)}
    rows = call_procedure(spark, request, "rewrite_data_files", arguments)
    return TableResult(counts=read_counts(rows[0]))


def rewrite_manifests(spark: SparkSession, request: TableRequest) -> TableResult:
    """Merge many small manifests into a few."""
    rows = call_procedure(spark, request, "rewrite_manifests", {"use_caching": "false"})
    return TableResult(counts=read_counts(rows[0]))


if __name__ == "__main__":
    run_job(compact_table, TableRequest)
