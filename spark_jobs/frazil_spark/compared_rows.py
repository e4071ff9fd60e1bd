"""Two tables as rows with coordinates, their full outer join, and its counts by partition."""

from functools import reduce

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.migration.messages import (
    ComparedTable,
    ExtentRequest,
    JoinRequest,
    PartitionReport,
    Samples,
)
from frazil_spark.session_settings import apply_settings

KEY = ("topic", "partition", "offset")
RANGES = "topic string, partition int, start bigint, end bigint"

SETTINGS = {
    "spark.sql.ansi.enabled": "true",  # a decimal as text has no exponent
    "spark.sql.caseSensitive": "true",  # as in Iceberg: `id` and `ID` are two columns
    "spark.sql.session.timeZone": "UTC",  # of timestamps without a zone
}

SAMPLES = 20
"""So many offsets of each kind are shown."""

BLOCK = 10_000
"""Offsets of a block are collected in memory before the first of them are kept."""

POSITIONS = {"before": -1, "rows": 0, "ahead": 1}
"""Of a row, relative to the judged range of its partition."""

KINDS = {
    "missing": "position = 0 AND left_rows > 0 AND right_rows = 0",
    "extra": "position = 0 AND left_rows = 0 AND right_rows > 0",
    "doubled_left": "position = 0 AND left_rows > 1",
    "doubled_right": "position = 0 AND right_rows > 1",
    "changed": "changed",
}
"""Kind of difference → SQL condition for a coordinate that has it."""


def configure(spark: SparkSession, request: ExtentRequest) -> None:
    """Set the catalogs of both tables, and what the values' meaning depends on."""
    apply_settings(spark, {**request.session_conf, **SETTINGS})


def read_rows(spark: SparkSession, table: ComparedTable) -> DataFrame:
    """Read the rows of one snapshot: coordinates, timestamp, and the values as one struct."""
    values = [f"{sql} AS c{index}" for index, sql in enumerate(table.values)]
    columns = {
        "topic": table.topic,
        "partition": table.partition,
        "offset": table.offset,
        "timestamp_ms": table.timestamp_ms,
        "values": f"struct({', '.join(values or ['0 AS none'])})",
    }
    selected = ", ".join(f"{sql} AS `{name}`" for name, sql in columns.items())
    version = "WHERE false" if table.snapshot_id is None else f"VERSION AS OF {table.snapshot_id}"
    return spark.sql(f"SELECT {selected} FROM {table.table} {version}")  # noqa: S608 - all quoted


def join_sides(spark: SparkSession, request: JoinRequest) -> DataFrame:
    """Join both sides; a row of the result is one coordinate, with its rows on each side.

    A full outer join by union and grouping: it shuffles and sorts each row once, and counts the
    rows of one coordinate, which a join would multiply. Only judged rows keep their values.
    """
    parts = [
        part
        for side, table in (("left", request.left), ("right", request.right))
        for part in (
            place_rows(read_rows(spark, table), request).selectExpr(
                *KEY,
                "position",
                f"1 AS {side}_row",
                f"if(position = 0, values, NULL) AS {side}_values",
            ),
            list_dead_letters(spark, table).withColumnRenamed("is_dead", f"{side}_is_dead_letter"),
        )
    ]
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    # Rows of a coordinate are together already: no partial grouping before another shuffle.
    return (
        rows.repartition(*(F.col(name) for name in (*KEY, "position")))
        .groupBy(*KEY, "position")
        .agg(
            *(
                F.expr(sql.replace("?", side))
                for side in ("left", "right")
                for sql in (
                    "coalesce(sum(?_row), 0) AS ?_rows",
                    "coalesce(bool_or(?_is_dead_letter), false) AS ?_is_dead_letter",
                    "first(?_values, true) AS ?_values",
                )
            )
        )
    )


def place_rows(rows: DataFrame, request: JoinRequest) -> DataFrame:
    """Add each row's position relative to the judged range of its partition."""
    ranges = [
        (topic, partition, start, end)
        for topic, parts in request.ranges.items()
        for partition, (start, end) in parts.items()
    ]
    if request.in_ranges_only:
        low, high = min(start for *_, start, _ in ranges), max(end for *_, end in ranges)
        rows = rows.where(f"offset >= {low} AND offset < {high}")  # skips data files
    judged = rows.sparkSession.createDataFrame(ranges, RANGES)
    placed = rows.join(F.broadcast(judged), ["topic", "partition"]).withColumn(
        "position", F.expr("CASE WHEN offset < start THEN -1 WHEN offset >= end THEN 1 ELSE 0 END")
    )
    return placed.where("position = 0") if request.in_ranges_only else placed


def list_dead_letters(spark: SparkSession, table: ComparedTable) -> DataFrame:
    """List the judged coordinates that one side has as open dead letters."""
    runs = [
        (topic, partition, start, end)
        for topic, parts in table.dead_letters.items()
        for partition, listed in parts.items()
        for start, end in listed
    ]
    return spark.createDataFrame(runs, RANGES).selectExpr(
        "topic",
        "partition",
        "explode(sequence(start, end - 1)) AS offset",
        "0 AS position",
        "true AS is_dead",
    )


def compare_values(joined: DataFrame, columns: int) -> DataFrame:
    """Compare the values where each side has one row; hash them for the checksums.

    The right side is hashed only where it differs: equal values have equal hashes. Null,
    [] and [null] have one hash in Spark: where such values differ, the right hash is inverted.
    """
    matched = "position = 0 AND left_rows = 1 AND right_rows = 1"
    numbers = range(columns)
    found = joined.selectExpr(
        "*",
        f"{matched} AS matched",
        *(
            f"{matched} AND NOT (left_values.c{n} <=> right_values.c{n}) AS differs_{n}"
            for n in numbers
        ),
    )
    left = (f"xxhash64(offset, left_values.c{n})" for n in numbers)
    found = found.selectExpr(
        "*",
        f"{' OR '.join(f'differs_{n}' for n in numbers) or 'false'} AS changed",
        *(f"CASE WHEN matched THEN {sql} END AS left_hash_{n}" for n, sql in enumerate(left)),
    ).drop("left_values")
    other = [f"xxhash64(offset, right_values.c{n})" for n in numbers]
    right = (f"if({sql} = left_hash_{n}, ~{sql}, {sql})" for n, sql in enumerate(other))
    return found.selectExpr(
        "*",
        *(
            f"CASE WHEN differs_{n} THEN {sql} ELSE left_hash_{n} END AS right_hash_{n}"
            for n, sql in enumerate(right)
        ),
    ).drop("right_values")


def summarize_partitions(compared: DataFrame, columns: int) -> DataFrame:
    """Count in one pass, first by block of offsets, so that the samples' memory has a bound."""
    counts = {name: f"count_if({sql})" for name, sql in KINDS.items()} | {
        "matched": "count_if(matched)",
        "missing_dead_letters": f"count_if({KINDS['missing']} AND right_is_dead_letter)",
        "extra_dead_letters": f"count_if({KINDS['extra']} AND left_is_dead_letter)",
    }
    for side in ("left", "right"):
        for name, position in POSITIONS.items():
            counts[f"{side}_{name}"] = f"sum(if(position = {position}, {side}_rows, 0))"
    samples = {
        f"{name}_sample": f"collect_list(if({sql}, offset, NULL))" for name, sql in KINDS.items()
    }
    differs = [f"differs_{n}" for n in range(columns)]
    hashes = [f"{side}_hash_{n}" for n in range(columns) for side in ("left", "right")]
    blocks = compared.groupBy("topic", "partition", F.expr(f"offset div {BLOCK} AS block")).agg(
        *(F.expr(f"{sql} AS {name}") for name, sql in counts.items()),
        *(F.expr(f"bool_or({name}) AS {name}") for name in differs),
        *(F.expr(f"bit_xor({name}) AS {name}") for name in hashes),
        *(F.expr(f"{cut(sql)} AS {name}") for name, sql in samples.items()),
    )
    return blocks.groupBy("topic", "partition").agg(
        *(F.expr(f"sum({name}) AS {name}") for name in counts),
        *(F.expr(f"bool_or({name}) AS {name}") for name in differs),
        *(F.expr(f"bit_xor({name}) AS {name}") for name in hashes),
        *(F.expr(f"{cut(f'flatten(collect_list({name}))')} AS {name}") for name in samples),
    )


def cut(offsets: str) -> str:
    """Write SQL for the first offsets of an array."""
    return f"slice(sort_array({offsets}), 1, {SAMPLES})"


def to_report(row: Row, request: JoinRequest) -> PartitionReport:
    """Read the counts of one partition."""
    found = row.asDict()
    samples = {name: found.pop(f"{name}_sample") for name in KINDS}
    differs = [found.pop(f"differs_{index}") for index in range(len(request.columns))]
    hashes = [
        tuple(found.pop(f"{side}_hash_{index}") for side in ("left", "right"))
        for index in range(len(request.columns))
    ]
    named = zip(request.columns, hashes, strict=True)
    return PartitionReport(
        **found,
        judged=request.ranges[row.topic][row.partition],
        changed_columns=tuple(
            name for name, is_other in zip(request.columns, differs, strict=True) if is_other
        ),
        checksums={name: (write_hash(left), write_hash(right)) for name, (left, right) in named},
        samples=Samples(**samples),
    )


def write_hash(number: int | None) -> str:
    """Write 64 bits in hexadecimal; no row at all is 0."""
    return f"{(number or 0) % 2**64:016x}"
