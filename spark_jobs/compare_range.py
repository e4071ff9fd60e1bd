"""Compare the table's rows of a range with Kafka's records decoded now; write nothing.

spark-submit spark_jobs/compare_range.py request.json result.json
"""

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.ingest.messages import StageRequest
from frazil.ledger.offsets import Runs
from frazil.recovery.messages import CompareRangeRequest, Differences
from frazil.schemas.column_decoding import value_path
from frazil.streams.column_types import ColumnType, ListType, MapType, Primitive, StructType
from frazil_spark.decode.frame import GOOD, KAFKA, Decoded, join_any, read_decode_options
from frazil_spark.decode.sources import read_ranges
from frazil_spark.decode.values import decode
from frazil_spark.job import run_job
from frazil_spark.session_settings import apply_settings

_PLAIN = Primitive("binary")
"""Stands for a type whose values Spark compares as they are."""
COORDINATE = ("topic", "partition", "offset")
_ISOLATED = "_frazil_isolated"
_INVALID, _SET_ASIDE = "_frazil_is_invalid", "_frazil_is_set_aside"
_ELSEWHERE, _TRUNCATES = "_frazil_is_elsewhere", "_frazil_truncates"


def compare_range(spark: SparkSession, request: CompareRangeRequest) -> Differences:
    """Join both sides by coordinate; count equal and changed records, and those of one side."""
    apply_settings(spark, request.session_conf)
    decoded = decode(
        read_ranges(spark, request),
        request.convert,
        request.columns,
        options=read_decode_options(request),
    )
    table = spark.table(f"{request.catalog}.{request.table}").where(in_ranges(request))
    kept = [name for name in table.select(f"{KAFKA}.*").columns if name not in COORDINATE]
    record = [f"{KAFKA}.`{name}`" for name in kept] if request.samples else []
    kinds = [*(column.type for column in decoded.columns), *(_PLAIN for _ in record)]
    paths = [*(value_path(column) for column in decoded.columns), *record]
    names = [*(f"`{column.name}`" for column in decoded.columns), *record]
    facts = [F.expr(f"coalesce({sql}, false)").alias(n) for n, sql in list_facts(decoded).items()]
    records = decoded.frame.select(
        *select_coordinate(), F.col(GOOD), *facts, select_comparable(kinds, paths).alias("decoded")
    )
    rows = table.select(*select_coordinate(), select_comparable(kinds, names).alias("stored"))
    joined = records.join(rows, list(COORDINATE), "full_outer")
    types = {column.name: column.type for column in decoded.columns}
    joined = allow_older_rows(joined, types, request)
    found = count_differences(joined, request)
    if not request.samples or not found.changed + found.now_bad:
        return found
    columns = [*(column.name for column in decoded.columns), *(f"{KAFKA}.{n}" for n in kept)]
    return found.model_copy(update=list_differing(joined, columns, request.samples))


def list_facts(decoded: Decoded) -> dict[str, str]:
    """Return the conditions of a record that the error budget refers to, by column."""
    aside = [frame.quarantined_sql() for frame in decoded.wires if frame.part == "value"]
    return {
        _INVALID: f"({decoded.invalid})",
        _SET_ASIDE: join_any(aside),
        _ELSEWHERE: decoded.routed_elsewhere,
        _TRUNCATES: decoded.truncates or "false",
    }


def allow_older_rows(
    joined: DataFrame, kinds: Mapping[str, ColumnType], request: CompareRangeRequest
) -> DataFrame:
    """Expect null in columns of rows that are null and were written before the column existed."""
    numbers = {name: number for number, name in enumerate(kinds)}
    decoded = F.col("decoded")
    for path, runs in request.older.items():
        name, *fields = path.split(".")
        place = find_place(f"c{numbers[name]}", kinds[name], fields) if name in kinds else None
        if place:
            is_older = are_in_runs(runs) & F.col(f"stored.{place}").isNull()
            decoded = decoded.withField(place, F.when(~is_older, F.col(f"decoded.{place}")))
    return joined.withColumn("decoded", decoded)


def find_place(place: str, kind: ColumnType, fields: Sequence[str]) -> str | None:
    """Return the path of a struct's field in what `write_comparable` makes; None for no field."""
    if not fields:
        return place
    parts = kind.fields if isinstance(kind, StructType) else ()
    number = next((n for n, each in enumerate(parts) if each.name == fields[0]), None)
    if number is None:
        return None
    inner = fields[0] if write_comparable(kind, "x") == "x" else f"c{number}"
    below = find_place(inner, parts[number].type, fields[1:])
    return below and f"{place}.{below}"


def list_differing(
    joined: DataFrame, columns: Sequence[str], samples: int
) -> dict[str, tuple[object, ...]]:
    """Return the first rows that changed or no longer decode, and the columns that differ."""
    differing = joined.where(f"stored IS NOT NULL AND {GOOD} IS NOT NULL").where(
        f"NOT {GOOD} OR NOT (decoded <=> stored)"
    )
    first = differing.select(*COORDINATE).orderBy(*COORDINATE).limit(samples).collect()
    differs = (
        f"bool_or({GOOD} AND NOT (decoded.c{n} <=> stored.c{n})) AS c{n}"
        for n in range(len(columns))
    )
    flags = differing.agg(*map(F.expr, differs)).collect()[0]
    return {
        "differing": tuple(tuple(row) for row in first),
        "columns": tuple(name for name, is_other in zip(columns, flags, strict=True) if is_other),
    }


def select_comparable(kinds: Sequence[ColumnType], paths: Sequence[str]) -> Column:
    """Select values of these types as one struct that Spark can compare."""
    values = (write_comparable(*pair) for pair in zip(kinds, paths, strict=True))
    return F.struct(*(F.expr(sql).alias(f"c{index}") for index, sql in enumerate(values)))


def write_comparable(kind: ColumnType, sql: str, depth: int = 0) -> str:
    """Write the value `sql` as one that Spark can compare: maps become sorted entries.

    Texts of uuids are equal in upper and lower case; Iceberg reads them in lower case.

    `depth` numbers the variables of nested lambda functions.
    """
    item = f"x{depth}"
    match kind:
        case Primitive("uuid"):
            return f"lower({sql})"
        case ListType():
            element = write_comparable(kind.element, item, depth + 1)
            return sql if element == item else f"transform({sql}, {item} -> {element})"
        case MapType():
            key = write_comparable(kind.key, f"{item}.key", depth + 1)
            value = write_comparable(kind.value, f"{item}.value", depth + 1)
            entries = f"transform(map_entries({sql}), {item} -> struct({key} AS k, {value} AS v))"
            return f"sort_array({entries})"
        case StructType():
            paths = [f"{sql}.`{field.name}`" for field in kind.fields]
            fields = [
                write_comparable(field.type, path, depth)
                for field, path in zip(kind.fields, paths, strict=True)
            ]
            listed = ", ".join(f"{each} AS c{index}" for index, each in enumerate(fields))
            return sql if fields == paths else f"if({sql} IS NULL, NULL, struct({listed}))"
    return sql


def select_coordinate() -> list[Column]:
    """Select topic, partition and offset from `_kafka`."""
    return [F.col(f"{KAFKA}.{name}").alias(name) for name in COORDINATE]


def in_ranges(request: StageRequest) -> Column:
    """Return the condition that a row is in the ranges, with literals that prune files."""
    each = [
        are_offsets_between(f"{KAFKA}.", topic, partition, pair)
        for topic, parts in request.ranges.items()
        for partition, pair in parts.items()
    ]
    return reduce(Column.__or__, each)


def are_offsets_between(prefix: str, topic: str, partition: int, pair: tuple[int, int]) -> Column:
    """Return the condition that a row has one of these offsets of a partition."""
    return (
        (F.col(f"{prefix}topic") == topic)
        & (F.col(f"{prefix}partition") == partition)
        & F.col(f"{prefix}offset").between(pair[0], pair[1] - 1)
    )


def are_in_runs(runs: Runs) -> Column:
    """Return the condition that a row has one of these offsets."""
    each = [
        are_offsets_between("", topic, partition, pair)
        for topic, parts in runs.items()
        for partition, pairs in parts.items()
        for pair in pairs
    ]
    return reduce(Column.__or__, each, F.expr("false"))


def count_differences(joined: DataFrame, request: StageRequest) -> Differences:
    """Count all kinds of records in one aggregation.

    Isolated records, which are not read, count as bad ones.
    """
    joined = joined.withColumn(_ISOLATED, are_in_runs(request.isolated))
    read, good, stored = (
        f"({GOOD} IS NOT NULL OR {_ISOLATED})",
        f"coalesce({GOOD}, false)",
        "stored IS NOT NULL",
    )
    conditions = {
        "rows_now": stored,
        "rows_read": f"{GOOD} IS NOT NULL",
        "rows_good": good,
        "same": f"{good} AND {stored} AND decoded <=> stored",
        "changed": f"{good} AND {stored} AND NOT (decoded <=> stored)",
        "missing": f"{good} AND stored IS NULL",
        "now_bad": f"{stored} AND {read} AND NOT {good}",
        "undelivered": f"{stored} AND NOT {read}",
        "now_invalid": f"{stored} AND ({_INVALID} OR {_ISOLATED}) AND NOT {good}",
        "now_set_aside": f"{stored} AND {_SET_ASIDE} AND NOT {good}",
        "now_elsewhere": f"{stored} AND {_ELSEWHERE}",
        "rows_elsewhere": _ELSEWHERE,
        "truncates": _TRUNCATES,
    }
    row = joined.agg(*(F.expr(f"count_if({sql})").alias(n) for n, sql in conditions.items()))
    counted: dict[str, int] = row.collect()[0].asDict()
    counted["rows_read"] += request.isolated_records
    return Differences(**counted)


if __name__ == "__main__":
    run_job(compare_range, CompareRangeRequest)
