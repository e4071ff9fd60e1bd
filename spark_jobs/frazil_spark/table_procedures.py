"""Iceberg's maintenance procedures, called with the arguments of one table request."""

from collections.abc import Mapping
from datetime import UTC, datetime

from pyspark.sql import Row, SparkSession

from frazil.maintenance.messages import TableRequest


def call_procedure(
    spark: SparkSession, request: TableRequest, procedure: str, arguments: Mapping[str, str]
) -> list[Row]:
    """Call `<catalog>.system.<procedure>`; the arguments are SQL."""
    named = {"table": f"'{request.table}'", **arguments}
    listed = ", ".join(f"{name} => {value}" for name, value in named.items())
    return spark.sql(f"CALL {request.catalog}.system.{procedure}({listed})").collect()


def write_map(options: Mapping[str, str]) -> str:
    """Write options as a SQL map."""
    pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    return f"map({pairs})"


def write_instant(instant_ms: int) -> str:
    """Write an instant as a SQL literal with its zone, whatever the session's zone is."""
    instant = datetime.fromtimestamp(instant_ms / 1000, tz=UTC)
    return f"TIMESTAMP '{instant:%Y-%m-%d %H:%M:%S.%f}Z'"


def read_counts(row: Row) -> dict[str, int]:
    """Return a procedure's result, one number per column."""
    return {name: int(value or 0) for name, value in row.asDict().items()}
