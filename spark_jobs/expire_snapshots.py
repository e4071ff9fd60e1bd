"""Expire the snapshots that a request lists, and delete the files that only they used.

spark-submit spark_jobs/expire_snapshots.py request.json result.json
"""

from collections import Counter
from collections.abc import Iterator

from pyspark.sql import SparkSession

from frazil.maintenance.messages import TableRequest, TableResult
from frazil_spark.job import run_job
from frazil_spark.session_settings import apply_settings
from frazil_spark.table_procedures import (
    call_procedure,
    read_counts,
    write_instant,
)

IDS_PER_CALL = 1000
_LONG_AGO_MS = 0


def expire_snapshots(spark: SparkSession, request: TableRequest) -> TableResult:
    """Expire by id; remaining snapshots keep their parent ids, unlike with PyIceberg's expiry.

    `older_than` is in 1970: by default the procedure would also expire all that is five days old.
    """
    apply_settings(spark, request.session_conf)
    totals: Counter[str] = Counter()
    before = measure_stored(spark, request)
    for ids in split_ids(request.snapshot_ids):
        rows = call_procedure(
            spark,
            request,
            "expire_snapshots",
            {
                "older_than": write_instant(_LONG_AGO_MS),
                "snapshot_ids": f"array({', '.join(f'{i}L' for i in ids)})",
                "stream_results": "true",
            },
        )
        totals.update(read_counts(rows[0]))
    after = measure_stored(spark, request)
    stored = {
        "files_before": before[0],
        "bytes_before": before[1],
        "files_after": after[0],
        "bytes_after": after[1],
    }
    return TableResult(counts={**totals, **stored})


def split_ids(snapshot_ids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield ids in groups that keep each statement short."""
    for start in range(0, len(snapshot_ids), IDS_PER_CALL):
        yield snapshot_ids[start : start + IDS_PER_CALL]


def measure_stored(spark: SparkSession, request: TableRequest) -> tuple[int, int]:
    """Return the number and the bytes of the data and delete files that any snapshot uses."""
    files = spark.table(f"{request.catalog}.{request.table}.all_files")
    distinct = files.select("file_path", "file_size_in_bytes").distinct()
    row = distinct.selectExpr("count(1)", "coalesce(sum(file_size_in_bytes), 0)").collect()[0]
    return int(row[0]), int(row[1])


if __name__ == "__main__":
    run_job(expire_snapshots, TableRequest)
