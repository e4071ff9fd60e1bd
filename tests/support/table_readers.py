"""One table read by PyIceberg, by Spark and, where they are installed, by DuckDB and Trino."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from faults.rest_catalog import run_rest_catalog
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession
from support.trino import CATALOG, HAS_TRINO, Rows, Trino, run_trino

Sum = tuple[int, str]


def checksum(rows: Iterable[tuple[object, ...]]) -> Sum:
    """Return the count of rows and a hash of their sorted texts."""
    texts = sorted(json.dumps([_write(value) for value in row]) for row in rows)
    return len(texts), hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _write(value: object) -> str:
    """Write a value; an instant in UTC, as engines have zones of their own."""
    is_instant = isinstance(value, datetime) and value.tzinfo is not None
    return str(value.astimezone(UTC) if is_instant else value)  # type: ignore[attr-defined]


def make_rows(table: pa.Table) -> Rows:
    """Return the rows of an Arrow table."""
    return [tuple(row.values()) for row in table.to_pylist()]


def read_by_pyiceberg(table: Table, columns: Sequence[str]) -> Rows:
    """Read columns of the table's newest snapshot."""
    return make_rows(table.scan(selected_fields=tuple(columns)).to_arrow().select(list(columns)))


def read_by_spark(spark: SparkSession, name: str, columns: Sequence[str]) -> Rows:
    """Read columns of the stack's table of this name."""
    return make_rows(spark.table(f"{CATALOG}.{name}").select(*columns).toArrow())


def read_by_duckdb(table: Table, columns: Sequence[str]) -> Rows | None:
    """Read columns by the table's metadata file; None if DuckDB's packages are not installed."""
    try:
        import duckdb  # noqa: PLC0415 - it need not be there
        import duckdb_ext  # noqa: PLC0415
    except ImportError:
        return None
    with duckdb.connect() as connection:
        extensions = str(Path(next(iter(duckdb_ext.__path__)), "extensions"))
        connection.execute("SET extension_directory = ?", [extensions])
        connection.execute("LOAD avro; LOAD iceberg")
        query = f"SELECT {_quote(columns)} FROM iceberg_scan(?)"  # noqa: S608 - our own names
        location = table.metadata_location.removeprefix("file://")
        return make_rows(connection.execute(query, [location]).fetch_arrow_table())


def _quote(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)


@contextmanager
def serve_to_trino(folder: Path, name: str, table: Table) -> Iterator[Trino]:
    """Start Trino over a REST catalog that knows one table, by its metadata file."""
    with run_rest_catalog(folder) as properties:
        catalog = load_catalog("rest", **properties)
        catalog.create_namespace(name.partition(".")[0])
        catalog.register_table(name, table.metadata_location)
        with run_trino(folder, properties["uri"]) as trino:
            yield trino


def read_by_trino(trino: Trino, name: str, columns: Sequence[str]) -> Rows:
    """Read columns of the table of this name."""
    return trino.ask(f"SELECT {_quote(columns)} FROM {CATALOG}.{name}")  # noqa: S608 - our own names


def read_by_each(
    folder: Path, spark: SparkSession, name: str, table: Table, columns: Sequence[str]
) -> dict[str, Sum]:
    """Return count and checksum of each reader that is there; Trino's files go to the folder."""
    found = {
        "PyIceberg": checksum(read_by_pyiceberg(table, columns)),
        "Spark": checksum(read_by_spark(spark, name, columns)),
    }
    if (rows := read_by_duckdb(table, columns)) is not None:
        found["DuckDB"] = checksum(rows)
    if HAS_TRINO:
        with serve_to_trino(folder, name, table) as trino:
            found["Trino"] = checksum(read_by_trino(trino, name, columns))
    return found
