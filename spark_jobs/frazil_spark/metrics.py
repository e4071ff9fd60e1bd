"""Counters of a batch, computed by `observe()` in the same pass that writes the rows."""

import json
from collections.abc import Iterator, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.ingest.messages import PartitionCount, StageRequest
from frazil.quality.sql import quote_name, write_count, write_weighted_count, write_weighted_sum
from frazil.schemas.column_decoding import value_path
from frazil.streams.column_types import parse_column
from frazil_spark.decode.frame import GOOD, Decoded
from frazil_spark.decode.values import MAX_NAMES
from frazil_spark.decode.wire_format import count_ids
from frazil_spark.fast_path.preaggregation import name_sums
from frazil_spark.fast_path.worker import FILE, SHIFTS, WEIGHT
from frazil_spark.fast_path.writer import choose_step


def count_metrics(decoded: Decoded, request: StageRequest) -> list[Column]:
    """List the aggregates: totals, records per partition, and the suite's metrics."""
    totals = {
        "read": write_count("true"),
        "good": write_count(GOOD),
        "elsewhere": write_count(decoded.elsewhere),
        "invalid": write_count(f"({decoded.invalid})", f"NOT {decoded.elsewhere}"),
        "min_timestamp_ms": "min(unix_millis(_kafka.timestamp))",
        "max_timestamp_ms": "max(unix_millis(_kafka.timestamp))",
    }
    if request.late_before_ms is not None:
        late = f"unix_millis(_kafka.timestamp) < {request.late_before_ms}"
        totals["late"] = write_count(late, f"NOT {decoded.elsewhere}")
    if request.direct is not None:
        totals["files"] = f"array_join(collect_list({FILE}), '\\n')"
    for frame in decoded.wires:
        totals |= count_ids(frame, GOOD)
        if frame.part == "value":
            totals["put_aside"] = write_count(frame.put_aside_sql(), f"NOT {decoded.elsewhere}")
    totals |= count_unnamed(decoded, request)
    for name, condition in _partition_conditions(request):
        totals |= {
            f"read_{name}": write_count(condition),
            f"good_{name}": write_count(condition, GOOD),
        }
    counted = totals | request.metrics
    if request.direct is not None:
        counted = {name: _weigh(sql, request) for name, sql in counted.items()}
    return [F.expr(sql).alias(name) for name, sql in counted.items()]


def _weigh(sql: str, request: StageRequest) -> str:
    """Let a row of those that stand for others count for all of them."""
    landmarks = request.direct.landmarks if request.direct else None
    for name in landmarks.sums if landmarks else ():
        path = value_path(parse_column(name, request.columns[name]))
        sql = write_weighted_sum(sql, path, *map(quote_name, name_sums(name)))
    return write_weighted_count(sql, WEIGHT)


def _partition_conditions(request: StageRequest) -> Iterator[tuple[str, str]]:
    several = len(request.ranges) > 1
    for position, topic in enumerate(sorted(request.ranges)):
        for partition in sorted(request.ranges[topic]):
            by_topic = f"_kafka.topic = '{topic}' AND " if several else ""
            yield f"{position}_{partition}", f"{by_topic}_kafka.partition = {partition}"


def read_files(observed: Mapping[str, str | int | None]) -> tuple[str, ...]:
    """Read the paths of the files that workers wrote."""
    return tuple(path for path in str(observed.get("files") or "").split("\n") if path)


def read_partitions(
    request: StageRequest, observed: Mapping[str, int | None]
) -> tuple[PartitionCount, ...]:
    """Read the counters per partition back from the observation."""
    return tuple(
        PartitionCount(
            topic=topic,
            partition=partition,
            rows_read=observed[f"read_{position}_{partition}"] or 0,
            rows_good=observed[f"good_{position}_{partition}"] or 0,
        )
        for position, topic in enumerate(sorted(request.ranges))
        for partition in sorted(request.ranges[topic])
    )


def count_unnamed(decoded: Decoded, request: StageRequest) -> dict[str, str]:
    """Write the aggregate that lists the names in the order of the alphabet."""
    if not decoded.unnamed:
        return {}
    # The offset first: the rest is worked out for the sampled records alone.
    place = "_kafka.offset"
    mixed = " ^ ".join([place, *(f"shiftright({place}, {bits})" for bits in SHIFTS)])
    sampled = f"({mixed}) % {choose_step(request)} = 0 AND {GOOD}"
    names = f"collect_set(CASE WHEN {sampled} THEN {decoded.unnamed} END)"
    listed = f"slice(array_sort(array_distinct(flatten({names}))), 1, {MAX_NAMES})"
    return {"unnamed": f"to_json({listed})"}


def read_unnamed(observed: Mapping[str, str | int | None]) -> tuple[str, ...]:
    """Read the names back from the observation."""
    return tuple(json.loads(str(observed.get("unnamed") or "[]")))
