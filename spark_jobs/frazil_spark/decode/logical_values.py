"""Values of the logical types of Kafka Connect and Debezium, as texts of docs/types.md.

This code travels to Spark's Python workers by value: it imports the standard library only.
"""

import base64
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from frazil_spark.decode.json_parts import Json, Number

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a time without a zone
_SCALES = (-131_072, 16_383)
"""PostgreSQL's decimals have no more digits before and behind the point; more take minutes."""
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CYCLE_DAYS, _LAST_YEAR, _DAY_MICROS = 146_097, 9_999, 86_400_000_000
"""The days of 400 years, after which the calendar repeats; and other parts of a time."""
_INFINITIES = {
    9_223_372_036_825_200_000_000: "infinity",
    -9_223_372_036_832_400_000_000: "-infinity",
    2**63 - 1: "infinity",
    -(2**63): "-infinity",
}
_INFINITE_DAYS = {-2_147_472_692: "infinity", -2_147_472_691: "-infinity"}
"""Nanoseconds and days that Debezium sends for PostgreSQL's infinite timestamps and dates."""
_INTEGERS = frozenset({"int", "long"})
Node: TypeAlias = dict[str, Json]
"""The schema of a field, as Kafka Connect's JSON converter writes it."""
Writer: TypeAlias = Callable[[Json, Node, str], str]
"""Writes a value, by its schema, for a column of a type; empty if it stays as it is."""


class UnknownEncodingError(ValueError):
    """A value cannot be read without a schema."""


def _write_decimal(value: Json, node: Node, kind: str) -> str:
    """Write a decimal: as text for a column that holds it exactly, else as a number."""
    if isinstance(value, Number):  # the converter has `decimal.format=NUMERIC`
        return f'"{value}"' if kind in {"decimal", "string"} else value
    parameters = _as_node(node.get("parameters", {}))
    given = value if isinstance(value, dict) else {**parameters, "value": value}
    if "scale" not in given:
        raise UnknownEncodingError
    scale = int(str(given["scale"]))
    if not _SCALES[0] <= scale <= _SCALES[1]:
        raise ValueError(scale)
    unscaled = base64.b64decode(str(given["value"]), validate=True)
    number = int.from_bytes(unscaled, "big", signed=True)
    whole = Decimal(abs(number) * 10 ** max(-scale, 0))  # writes more digits than an integer may
    digits = f"{whole:f}".zfill(scale + 1)
    text = "-" * (number < 0) + (f"{digits[:-scale]}.{digits[-scale:]}" if scale > 0 else digits)
    return f'"{text}"' if kind in {"decimal", "string"} else text


def _as_node(given: Json) -> Node:
    return given if isinstance(given, dict) else {}


def _write_date(value: Json, _: Node, kind: str) -> str:
    if kind in _INTEGERS:
        return ""
    days = int(str(value))
    if kind == "string":
        return f'"{_INFINITE_DAYS.get(days) or _write_day(days)}"'
    return f'"{date.fromordinal(_EPOCH_DAY + days)}"'


def _write_day(days: int) -> str:
    """Return a date as ISO 8601 has it, also outside the years 1 to 9999 that Python knows."""
    cycles, left = divmod(_EPOCH_DAY - 1 + days, _CYCLE_DAYS)
    day = date.fromordinal(left + 1)
    year = day.year + 400 * cycles
    shown = f"{year:04d}" if 0 <= year <= _LAST_YEAR else f"{year:+05d}"
    return f"{shown}-{day.month:02d}-{day.day:02d}"


def _write_clock(micros: int) -> str:
    seconds, micros = divmod(micros, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}.{micros:06d}"


def _write_timestamp(nanos: int) -> Writer:
    """Return a function that writes a timestamp without a zone; `nanos` has one unit of it."""

    def write(value: Json, _: Node, kind: str) -> str:
        if kind in _INTEGERS:
            return ""
        given = int(str(value)) * nanos
        micros, rest = divmod(given, 1000)
        fraction = f"{rest:03d}" if rest else ""
        if kind != "string":
            text = (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
            return f'"{text}{fraction}"'
        days, clock = divmod(micros, _DAY_MICROS)
        text = f"{_write_day(days)}T{_write_clock(clock)}{fraction}"
        return f'"{_INFINITIES.get(given, text)}"'

    return write


def _write_time(nanos: int) -> Writer:
    """Return a function that writes a time: microseconds for an integer, else hours and more.

    A time may be 24:00:00, and one of MySQL is a duration: negative, or of many days.
    """

    def write(value: Json, _: Node, kind: str) -> str:
        given = int(str(value)) * nanos
        sign = "-" if given < 0 else ""
        micros, rest = divmod(abs(given), 1000)
        fraction = f"{rest:03d}" if rest else ""
        if kind in _INTEGERS:
            return f"{sign}{micros}.{fraction}" if rest else f"{sign}{micros}"
        return f'"{sign}{_write_clock(micros)}{fraction}"'

    return write


_CONNECT, _TIME = "org.apache.kafka.connect.data", "io.debezium.time"
LOGICAL: Mapping[str, Writer] = {
    f"{_CONNECT}.Decimal": _write_decimal,
    "io.debezium.data.VariableScaleDecimal": _write_decimal,
    f"{_CONNECT}.Date": _write_date,
    f"{_TIME}.Date": _write_date,
    f"{_CONNECT}.Timestamp": _write_timestamp(1_000_000),
    f"{_TIME}.Timestamp": _write_timestamp(1_000_000),
    f"{_TIME}.MicroTimestamp": _write_timestamp(1_000),
    f"{_TIME}.NanoTimestamp": _write_timestamp(1),
    f"{_CONNECT}.Time": _write_time(1_000_000),
    f"{_TIME}.Time": _write_time(1_000_000),
    f"{_TIME}.MicroTime": _write_time(1_000),
    f"{_TIME}.NanoTime": _write_time(1),
}
"""Kafka Connect's names of types whose JSON needs the schema; others are texts already."""
