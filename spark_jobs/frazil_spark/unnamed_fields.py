"""Fields of JSON records that no column names: they are left out, so a sample tells their names.

A record is sampled by its offset, whoever decodes it, so each attempt finds the same names. Only
what could be a column's name is told: other names may be keys of a map, and so data.
"""

import json
from collections.abc import Iterator, Mapping

from frazil.columns import Column, StructType
from frazil.contracts import StageRequest
from frazil.quality_sql import write_text
from frazil_spark.decoded import GOOD, Decoded
from frazil_spark.direct_files import SHIFTS

SAMPLED_RECORDS = 1000
MAX_BYTES = 20_000
"""Longer records are not looked through: a name is not worth the time."""

MAX_NAMES = 10
_NAME = "^[A-Za-z_][A-Za-z0-9_]{0,59}$"


def write_unnamed(payload: str, columns: tuple[Column, ...]) -> str:
    """Write the SQL that lists a record's first fields without a column, in structs as `a.b`."""
    levels = ", ".join(_write_levels(f"CAST({payload} AS STRING)", columns, ""))
    found = f"slice(array_sort(array_distinct(concat({levels}))), 1, {MAX_NAMES})"
    return f"CASE WHEN length({payload}) <= {MAX_BYTES} THEN {found} END"


def _write_levels(text: str, columns: tuple[Column, ...], path: str) -> Iterator[str]:
    named = ", ".join(write_text(column.name) for column in columns)
    others = f"array_except(json_object_keys({text}), array({named}))"
    plain = f"filter({others}, name -> name RLIKE '{_NAME}')"
    yield f"coalesce(transform({plain}, name -> concat('{path}', name)), array())"
    for column in columns:
        if isinstance(column.type, StructType):
            inner = f"get_json_object({text}, '$.{column.name}')"
            yield from _write_levels(inner, column.type.fields, f"{path}{column.name}.")


def choose_step(request: StageRequest) -> int:
    """Choose every how many offsets a record is sampled."""
    pairs = (pair for parts in request.ranges.values() for pair in parts.values())
    return max(1, sum(end - start for start, end in pairs) // SAMPLED_RECORDS)


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
