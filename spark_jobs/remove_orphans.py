"""List or delete the files in one table's folder that nothing references.

spark-submit spark_jobs/remove_orphans.py request.json result.json
"""

from pyspark.sql import SparkSession

from frazil.maintenance.messages import TableRequest, TableResult
from frazil_spark.job import run_job
from frazil_spark.session_settings import apply_settings
from frazil_spark.table_procedures import call_procedure, write_instant


def remove_orphans(spark: SparkSession, request: TableRequest) -> TableResult:
    """Remove files older than `older_than_ms` that no snapshot, branch or metadata log references.

    The procedure itself refuses an age below 24 hours. A file whose path differs from a live one by
    scheme or authority only fails the job: that is the strictest of the procedure's modes.
    """
    apply_settings(spark, request.session_conf)
    rows = call_procedure(
        spark,
        request,
        "remove_orphan_files",
        {
            "older_than": write_instant(request.older_than_ms),
            "dry_run": str(request.dry_run).lower(),
            "prefix_listing": str(request.prefix_listing).lower(),
            "prefix_mismatch_mode": "'ERROR'",
        },
    )
    paths = tuple(sorted(str(row[0]) for row in rows))
    return TableResult(counts={"files": len(paths)}, paths=paths)


if __name__ == "__main__":
    run_job(remove_orphans, TableRequest)
