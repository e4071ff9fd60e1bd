"""Counters of a batch, computed by `observe()` in the same pass that writes the rows."""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.utils import is_remote

from frazil.ingest.messages import PartitionCount, StageRequest
from frazil.quality.sql import write_count, write_weighted_count, write_weighted_sum
from frazil.schemas.column_decoding import value_path
from frazil.schemas.wire_format import MAX_UNNAMED
from frazil.streams.column_types import parse_column, quote_name
from frazil_spark.decode.frame import GOOD, Decoded
from frazil_spark.decode.wire_format import count_ids, read_ids
from frazil_spark.fast_path.preaggregation import name_sums
from frazil_spark.fast_path.worker import FILE, WEIGHT


class Counters:
    """Aggregates that Spark computes while it writes a frame.

    An `Observation` of Spark Connect first asks whether the frame is a stream, for which the server
    analyzes the whole plan once more. So there the aggregates have only a name.
    """

    def __init__(self) -> None:
        """Choose how the session counts, and a unique name: jobs may share a session."""
        self._observation = None if is_remote() else Observation()
        self._name = str(uuid.uuid4())

    def add(self, frame: DataFrame, *aggregates: Column) -> DataFrame:
        """Return the frame with the aggregates; it must not be a stream."""
        return frame.observe(self._observation or self._name, *aggregates)

    def read(self, written: DataFrame) -> dict[str, Any]:
        """Return the values by name after a frame was written; none if Spark sent none."""
        if self._observation is not None:
            return self._observation.get
        info = written.executionInfo
        found = dict(info.flows) if info else {}
        return found.get(self._name, {})


def count_metrics(decoded: Decoded, request: StageRequest) -> list[Column]:
    """List the aggregates: totals, records by partition, and the suite's metrics."""
    totals = {
        "read": write_count("true"),
        "good": write_count(GOOD),
        "elsewhere": write_count(decoded.routed_elsewhere),
        "invalid": write_count(f"({decoded.invalid})", f"NOT {decoded.routed_elsewhere}"),
        "min_timestamp_ms": "min(unix_millis(_kafka.timestamp))",
        "max_timestamp_ms": "max(unix_millis(_kafka.timestamp))",
    }
    totals |= {f"skipped_{name}": write_count(sql) for name, sql in decoded.skips.items()}
    if decoded.truncates:
        totals["truncates"] = write_count(decoded.truncates)
    if request.late_before_ms is not None:
        late = f"unix_millis(_kafka.timestamp) < {request.late_before_ms}"
        totals["late"] = write_count(late, f"NOT {decoded.routed_elsewhere}")
    if request.fast_path is not None:
        totals["files"] = f"array_join(collect_list({FILE}), '\\n')"
    for frame in decoded.wires:
        totals |= count_ids(frame, GOOD)
        if frame.part == "value":
            totals["quarantined"] = write_count(
                frame.quarantined_sql(), f"NOT {decoded.routed_elsewhere}"
            )
    totals |= count_unmapped_fields(decoded)
    for name, condition in _partition_conditions(request):
        totals |= {
            f"read_{name}": write_count(condition),
            f"good_{name}": write_count(condition, GOOD),
        }
    counted = totals | request.metrics
    if request.fast_path is not None:
        counted = {name: _apply_weights(sql, request) for name, sql in counted.items()}
    return [F.expr(sql).alias(name) for name, sql in counted.items()]


def _apply_weights(sql: str, request: StageRequest) -> str:
    """Rewrite a counter so that a row counts as many times as its weight."""
    cut_points = request.fast_path.cut_points if request.fast_path else None
    for name in cut_points.sums if cut_points else ():
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
    """Return the paths of the files that workers wrote."""
    return tuple(path for path in str(observed.get("files") or "").split("\n") if path)


def read_partitions(
    request: StageRequest, observed: Mapping[str, int | None]
) -> tuple[PartitionCount, ...]:
    """Return the counters of each partition from the observation."""
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


def read_skipped(observed: Mapping[str, int | None]) -> dict[str, int]:
    """Return the numbers of skipped records by their name, without zeros, from the observation."""
    prefix = "skipped_"
    names = [name for name in observed if name.startswith(prefix)]
    return {name.removeprefix(prefix): count for name in names if (count := observed[name])}


def count_unmapped_fields(decoded: Decoded) -> dict[str, str]:
    """Write the aggregate that lists unmapped fields of sampled records, in alphabetical order."""
    if not decoded.unmapped_fields:
        return {}
    names = f"collect_set(CASE WHEN {GOOD} THEN {decoded.unmapped_fields} END)"
    listed = f"slice(array_sort(array_distinct(flatten({names}))), 1, {MAX_UNNAMED})"
    return {"unmapped_fields": f"to_json({listed})"}


def read_unmapped_fields(
    decoded: Decoded, observed: Mapping[str, str | int | None]
) -> tuple[str, ...]:
    """Return the unmapped fields from the observation, and those of the schemas of good rows.

    In quotes are those that need a column of another name.
    """
    found = [*json.loads(str(observed.get("unmapped_fields") or "[]"))]
    for frame in decoded.wires:
        used = {*read_ids(observed[f"{frame.part}_ids"])}
        found += [n for s in frame.usable if s.schema_id in used for n in s.unnamed_fields]
    by_name = {name.replace("`", ""): name for name in found}  # the schemas' come last
    return tuple(sorted(by_name.values())[:MAX_UNNAMED])
