"""Values of the logical types of Kafka Connect and Debezium, as texts of docs/types.md.

This code travels to Spark's Python workers by value: it imports the standard library only.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from frazil_spark.decode.json_parts import Json, Number, Part, split_list, split_object

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
_INFINITE_TEXTS = {
    "+5881610-07-11": "infinity",
    "-5877611-06-22": "-infinity",
    "+294247-01-10T04:00:25.200000": "infinity",
    "-290308-12-21T19:59:27.600000": "-infinity",
}
_INFINITE_DAYS = {-2_147_472_692: "infinity", -2_147_472_691: "-infinity"}
"""Nanoseconds, texts and days that Debezium sends for PostgreSQL's infinite timestamps and dates.

The texts are the numbers as days and times; that of the day is beyond 32 bits, the number is not.
"""
_YEAR = r"(?:[0-9]{4}|[+-][0-9]{4,10})"
_DAY = rf"(?P<day>{_YEAR}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01]))"
_MINUTE = r"(?P<hour>[01][0-9]|2[0-3]):(?P<minute>[0-5][0-9])"
_CLOCK = rf"{_MINUTE}:(?P<second>[0-5][0-9])(?:[.](?P<fraction>[0-9]{{1,9}}))?"
_ISO_DATE = re.compile(rf"{_DAY}Z?\Z")
_ISO_TIMESTAMP = re.compile(rf"{_DAY}T{_CLOCK}Z?\Z")
_ISO_TIME = re.compile(rf"{_CLOCK}Z?\Z")
_INTEGERS = frozenset({"int", "long"})
BYTES = frozenset({"bytes", "fixed"})
"""Types of a schema whose values are sent in Base64; the latter is Avro's."""
_WHOLE = re.compile(r"-?[0-9]{1,20}\Z")
_SCALE = re.compile(r"-?[0-9]{1,10}\Z")
"""Python would read `1_9`, blanks and the digits of any script as numbers, too."""
Node: TypeAlias = dict[str, Json]
"""The schema of a field, as Kafka Connect's JSON converter writes it."""
Nodes: TypeAlias = Mapping[str, Json] | None
Writer: TypeAlias = Callable[[Json, Node, str], str]
"""Writes a value, by its schema, for a column of a type; empty if it stays as it is."""


class UnreadableValueError(ValueError):
    """A value makes its record a dead letter; `reason` is one of docs/formats.md.

    UnreadableValueError
    ├─ MisfitError
    └─ UnknownEncodingError
       └─ TextForBytesError
    """

    reason = ""
    detail = ""


class MisfitError(UnreadableValueError):
    """A value has not the form of its schema's type, or its column cannot hold it."""

    reason = "type_mismatch"
    detail = "has a wrong form"


class UnknownEncodingError(UnreadableValueError):
    """A value cannot be read without a schema."""

    reason = "unknown_encoding"
    detail = "cannot be read without a schema"


class TextForBytesError(UnknownEncodingError):
    """A value for bytes is a text by its schema, which may be Base64 or hexadecimal digits."""

    detail = "is text by its schema: set binary.handling.mode=bytes at the connector"


def fields_of(schema: Json) -> Nodes:
    """Return the schemas of a struct's fields by name; None without a schema."""
    if not isinstance(schema, dict):
        return None
    fields = schema["fields"]
    each_field = fields if isinstance(fields, list) else []
    return {str(each["field"]): each for each in each_field if isinstance(each, dict)}


def write_logical(value: Json, node: Node, kind: str) -> str:
    """Write a value of a logical type for a column of a type; empty if it stays as it is.

    Raises:
        UnreadableValueError: it is none of its type, or the column cannot hold it.
    """
    try:
        return LOGICAL[str(node["name"])](value, node, kind)
    except UnreadableValueError:
        raise
    except (ValueError, OverflowError) as error:
        raise MisfitError from error


def write_readable(part: Part, node: Json) -> str:
    """Write JSON for a column of text: numbers, days and times for what needs its schema.

    Raises:
        UnreadableValueError: a value in it is none of its type.
    """
    if part.value is None or not isinstance(node, dict):
        return part.text
    name = str(node.get("name"))
    if name in LOGICAL:
        kind = "double" if name.endswith("Decimal") else "string"
        return write_logical(part.value, node, kind) or part.text
    inner = _split_inner(part, node)
    texts = [write_readable(each, its_node) for _, each, its_node in inner]
    if texts == [each.text for _, each, _ in inner]:
        return part.text
    named = ",".join(key + text for (key, _, _), text in zip(inner, texts, strict=True))
    return f"[{named}]" if isinstance(part.value, list) else f"{{{named}}}"


def _split_inner(part: Part, node: Node) -> list[tuple[str, Part, Json]]:
    """Return the values inside a value: what precedes each, and its schema."""
    if isinstance(part.value, list):
        return [("", each, node.get("items")) for each in split_list(part.text)]
    if not isinstance(part.value, dict):
        return []
    values, nodes = node.get("values"), (fields_of(node) or {}) if "fields" in node else {}
    pairs = split_object(part.text)
    return [(f"{json.dumps(key)}:", each, nodes.get(key, values)) for key, each in pairs]


def _write_decimal(value: Json, node: Node, kind: str) -> str:
    """Write a decimal: as text for a column that holds it exactly, else as a number."""
    if isinstance(value, Number):  # the converter has `decimal.format=NUMERIC`
        return f'"{value}"' if kind in {"decimal", "string"} else value
    parameters = _as_node(node.get("parameters", {}))
    given = value if isinstance(value, dict) else {**parameters, "value": value}
    if "scale" not in given:
        raise UnknownEncodingError
    if isinstance(value, str) and node.get("type", "bytes") not in BYTES:
        raise MisfitError
    scale, number = _read_scale(given["scale"]), _read_unscaled(given.get("value"))
    whole = Decimal(abs(number) * 10 ** max(-scale, 0))  # writes more digits than an integer may
    digits = f"{whole:f}".zfill(scale + 1)
    text = "-" * (number < 0) + (f"{digits[:-scale]}.{digits[-scale:]}" if scale > 0 else digits)
    return f'"{text}"' if kind in {"decimal", "string"} else text


def _read_scale(given: Json) -> int:
    if not isinstance(given, str) or not _SCALE.match(given):
        raise MisfitError
    scale = int(given)
    if not _SCALES[0] <= scale <= _SCALES[1]:
        raise MisfitError
    return scale


def _read_unscaled(given: Json) -> int:
    """Read the number in Base64; no bytes are no number, as for Java."""
    if not isinstance(given, str) or isinstance(given, Number):
        raise MisfitError
    unscaled = base64.b64decode(given, validate=True)
    if not unscaled:
        raise MisfitError
    return int.from_bytes(unscaled, "big", signed=True)


def _read_whole(given: Json) -> int:
    """Read a number of days, or of units of time: a text is none."""
    if not isinstance(given, Number) or not _WHOLE.match(given):
        raise MisfitError
    return int(given)


def _as_node(given: Json) -> Node:
    return given if isinstance(given, dict) else {}


def _write_date(value: Json, _: Node, kind: str) -> str:
    days = _read_whole(value)
    if kind in _INTEGERS:
        return ""
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
    """Return a function that writes a timestamp without a zone; its unit is `nanos` nanoseconds."""

    def write(value: Json, _: Node, kind: str) -> str:
        given = _read_whole(value) * nanos
        if kind in _INTEGERS:
            return ""
        if kind == "string":
            return f'"{_INFINITIES.get(given) or _write_instant(given)}"'
        micros, fraction = _split_nanos(given)
        text = (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
        return f'"{text}{fraction}"'

    return write


def _write_instant(nanos: int) -> str:
    micros, fraction = _split_nanos(nanos)
    days, clock = divmod(micros, _DAY_MICROS)
    return f"{_write_day(days)}T{_write_clock(clock)}{fraction}"


def _split_nanos(nanos: int) -> tuple[int, str]:
    """Return microseconds, and the digits behind them if there are any."""
    micros, rest = divmod(nanos, 1000)
    return micros, f"{rest:03d}" if rest else ""


def _write_time(nanos: int) -> Writer:
    """Return a function that writes a time; its unit is `nanos` nanoseconds."""
    return lambda value, _, kind: _write_duration(_read_whole(value) * nanos, kind)


def _write_duration(nanos: int, kind: str) -> str:
    """Write a time: microseconds for an integer, else hours and more.

    A time may be 24:00:00, and one of MySQL is a duration: negative, or of many days.
    """
    sign = "-" if nanos < 0 else ""
    micros, fraction = _split_nanos(abs(nanos))
    if kind in _INTEGERS:
        return f"{sign}{micros}.{fraction}" if fraction else f"{sign}{micros}"
    return f'"{sign}{_write_clock(micros)}{fraction}"'


def _match(form: re.Pattern[str], value: Json) -> re.Match[str]:
    found = form.match(value) if isinstance(value, str) else None
    if found is None:
        raise MisfitError
    return found


def _write_iso_date(value: Json, _: Node, kind: str) -> str:
    day = _match(_ISO_DATE, value)["day"]
    return f'"{_INFINITE_TEXTS.get(day, day) if kind == "string" else day}"'


def _write_iso_timestamp(value: Json, _: Node, kind: str) -> str:
    if kind == "timestamptz":
        return ""
    found = _match(_ISO_TIMESTAMP, value)
    micros, fraction = _split_nanos(_count_nanos(found))
    text = f"{found['day']}T{_write_clock(micros)}{fraction}"
    return f'"{_INFINITE_TEXTS.get(text, text) if kind == "string" else text}"'


def _write_iso_time(value: Json, _: Node, kind: str) -> str:
    return _write_duration(_count_nanos(_match(_ISO_TIME, value)), kind)


def _count_nanos(found: re.Match[str]) -> int:
    """Return the nanoseconds of a clock."""
    seconds = (int(found["hour"]) * 60 + int(found["minute"])) * 60 + int(found["second"])
    return seconds * 1_000_000_000 + int((found["fraction"] or "").ljust(9, "0"))


def drop_zone(text: str, kind: str) -> str:
    """Return a day or time in UTC without its zone, if it is one, for a column without a zone."""
    form = {"date": _ISO_DATE, "timestamp": _ISO_TIMESTAMP}.get(kind)
    return text.removesuffix("Z") if form is not None and form.match(text) else text


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
    f"{_TIME}.IsoDate": _write_iso_date,
    f"{_TIME}.IsoTimestamp": _write_iso_timestamp,
    f"{_TIME}.IsoTime": _write_iso_time,
}
"""Kafka Connect's names of types whose JSON needs the schema; others are texts already."""
