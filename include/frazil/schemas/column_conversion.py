"""Write the SQL that converts a decoded Avro or Protobuf value to its column's type, exactly.

A type pair is always convertible, convertible if a condition on the value holds (`mismatch` is true
where it does not), or not convertible: then the whole schema is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from frazil.schemas.avro import MILLIS, SYMBOLS
from frazil.schemas.source_types import (
    Dictionary,
    NotConvertibleError,
    Record,
    Scalar,
    Sequence,
    Source,
    Unsupported,
)
from frazil.schemas.text_grammar import FIRST_SECOND, LAST_SECOND, has_form, is_out_of_range
from frazil.streams.column_types import (
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    format_type,
    to_spark_ddl,
    write_text,
)

_WIDENINGS = {("int", "long"), ("int", "double"), ("float", "double")}
_INTEGER_DIGITS = {"int": 10, "long": 19}


@dataclass(frozen=True)
class Conversion:
    """SQL for the converted value, and a condition that is true where the value is not convertible.

    `is_identity`: the decoded value has its column's type already.
    """

    value: str
    mismatch: str | None = None
    is_identity: bool = False


def convert_columns(
    root: Source, columns: tuple[Column, ...], path: str, *, is_flat: bool, single_column: str
) -> dict[str, Conversion]:
    """Return the conversion of each column from the value at `path`; null for an absent field.

    Raises:
        NotConvertibleError: a field cannot be converted to its column's type, or no column has a
            field.
    """
    if not is_flat or not isinstance(root, Record):
        root, path = Record(((single_column, root),), (path,)), ""
    found = {column.name: root.find(column.field) for column in columns}
    if not any(source for source, _ in found.values()):
        message = f"has none of the columns {', '.join(column.name for column in columns)}"
        raise NotConvertibleError(message)
    return {
        column.name: _convert(
            source, column.type, f"{path}.`{decoded}`" if path else decoded, column.name
        )
        for column, (source, decoded) in zip(columns, found.values(), strict=True)
    }


def _convert(
    source: Source | None, target: ColumnType, path: str, name: str, depth: int = 0
) -> Conversion:
    """Write SQL that converts a decoded value, or NULL, to the column's type.

    Raises:
        NotConvertibleError: the column's type cannot hold the value exactly.
    """
    if source is None:
        return Conversion(f"CAST(NULL AS {to_spark_ddl(target)})")
    match source, target:
        case Scalar(), Primitive():
            return _convert_scalar(source, target, path, name)
        case Sequence(element), ListType(wanted, _):
            item = f"e{depth}"
            inner = _convert(element, wanted, item, f"{name}.element", depth + 1)
            value = path if inner.is_identity else f"transform({path}, {item} -> {inner.value})"
            mismatch = f"exists({path}, {item} -> {inner.mismatch})" if inner.mismatch else None
            return Conversion(value, mismatch, inner.is_identity)
        case Dictionary(), MapType():
            return _convert_dictionary(source, target, path, name, depth)
        case Record(), StructType():
            return _convert_record(source, target, path, name, depth)
        case Unsupported(reason), _:
            message = f"{name} {reason}"
            raise NotConvertibleError(message)
    raise _not_convertible(source, target, name)


def _convert_dictionary(
    source: Dictionary, target: MapType, path: str, name: str, depth: int
) -> Conversion:
    item = f"v{depth}"
    inner = _convert(source.value, target.value, item, f"{name}.value", depth + 1)
    value = path
    if not inner.is_identity:
        value = f"transform_values({value}, (k{depth}, {item}) -> {inner.value})"
    has_text = source.key.type.name == "string"
    if not has_text:
        value = f"transform_keys({value}, (k{depth}, {item}) -> CAST(k{depth} AS STRING))"
    mismatches = []
    if inner.mismatch:
        mismatches.append(f"exists(map_values({path}), {item} -> {inner.mismatch})")
    if has_text:
        mismatches.append(f"exists(map_keys({path}), k{depth} -> {_is_invalid_text(f'k{depth}')})")
    return Conversion(value, " OR ".join(mismatches) or None, inner.is_identity and has_text)


def _convert_record(
    source: Record, target: StructType, path: str, name: str, depth: int
) -> Conversion:
    found = [(field, *source.find(field.field)) for field in target.fields]
    if not any(inner for _, inner, _ in found):
        raise _not_convertible(source, target, name)
    converted = {
        f.name: _convert(inner, f.type, f"{path}.`{decoded}`", f"{name}.{f.name}", depth)
        for f, inner, decoded in found
    }
    mismatches = [f"coalesce({f.mismatch}, false)" for f in converted.values() if f.mismatch]
    mismatch = " OR ".join(mismatches) or None
    is_same = [f.field for f in target.fields] == [field for field, _ in source.fields]
    is_same = is_same and tuple(converted) == source.decoded_names
    if is_same and all(f.is_identity for f in converted.values()):
        return Conversion(path, mismatch, is_identity=True)
    parts = ", ".join(f"'{n}', {f.value}" for n, f in converted.items())
    return Conversion(f"CASE WHEN {path} IS NOT NULL THEN named_struct({parts}) END", mismatch)


def _convert_scalar(source: Scalar, target: Primitive, path: str, name: str) -> Conversion:
    """Convert one value by its encoding."""
    converted = _ENCODINGS[source.encoding](source, target, path)
    if converted is None:
        raise _not_convertible(source, target, name)
    return converted


def _convert_plain(given: Scalar, target: Primitive, path: str) -> Conversion | None:
    """Convert a value without a special encoding: to its own type, a wider one, or by condition."""
    source = given.type
    if source.name == "uuid" or target.name == "uuid":
        return _convert_uuid(source, target, path)
    if source == target or (source.name, target.name) == ("fixed", "binary"):
        mismatch = is_out_of_range(path, source.name)
        if source.name == "string":
            mismatch = _is_invalid_text(path)
        return Conversion(path, mismatch, is_identity=True)
    if (source.name, target.name) in _WIDENINGS:
        return Conversion(f"CAST({path} AS {to_spark_ddl(target)})")
    match source, target:
        case Primitive("int" | "long" as kind, _), Primitive("decimal", (precision, scale)):
            if precision - scale >= _INTEGER_DIGITS[kind]:
                return Conversion(f"CAST({path} AS {to_spark_ddl(target)})")
        case Primitive("binary", _), Primitive("fixed", (length,)):
            return Conversion(path, f"octet_length({path}) != {length}", is_identity=True)
    return None


def _convert_uuid(source: Primitive, target: Primitive, path: str) -> Conversion | None:
    if not {source.name, target.name} <= {"uuid", "string"}:
        return None
    mismatch = (
        f"NOT ({has_form(path, 'uuid')})" if target.name == "uuid" else _is_invalid_text(path)
    )
    return Conversion(path, mismatch, is_identity=True)


def _is_invalid_text(text: str) -> str:
    """Write the SQL that is true for text that is not valid UTF-8, which Avro's readers accept."""
    return f"NOT is_valid_utf8({text})"


def _convert_wrapped(source: Scalar, target: Primitive, path: str) -> Conversion | None:
    converted = _convert_plain(source, target, f"{path}.value")
    return converted and Conversion(converted.value, converted.mismatch)


def _convert_enum(source: Scalar, target: Primitive, path: str) -> Conversion | None:
    """Convert an enum's number to its name; a number that the schema lacks is a mismatch."""
    if target.name == "int":
        return Conversion(path, is_identity=True)
    if target.name != "string":
        return None
    cases = " ".join(f"WHEN {number} THEN '{name}'" for number, name in source.symbols)
    numbers = ", ".join(str(number) for number, _ in source.symbols)
    return Conversion(f"CASE {path} {cases} END", f"{path} NOT IN ({numbers})")


def _convert_symbols(source: Scalar, target: Primitive, path: str) -> Conversion | None:
    """Convert an enum's symbol from the one that Spark's reader decodes."""
    if target.name != "string":
        return None
    cases = " ".join(f"WHEN 's{number}' THEN {write_text(name)}" for number, name in source.symbols)
    return Conversion(f"CASE {path} {cases} END")


def _convert_decimal(source: Scalar, target: Primitive, path: str) -> Conversion | None:
    """Convert a decimal, which is decoded with all its digits; losing one is a mismatch."""
    if target.name != "decimal":
        return None
    value = f"try_cast({path} AS {to_spark_ddl(target)})"
    scale = source.type.parameters[1]
    back = f"try_cast({value} AS DECIMAL(38,{scale}))"
    return Conversion(value, f"{path} IS NOT NULL AND NOT coalesce({back} = {path}, false)")


def _convert_millis(_: Scalar, target: Primitive, path: str) -> Conversion | None:
    """Convert a time of day from milliseconds to microseconds."""
    return Conversion(f"CAST({path} AS BIGINT) * 1000") if target.name == "long" else None


def _convert_nanos(source: Scalar, target: Primitive, path: str) -> Conversion | None:
    """Convert nanoseconds to a timestamp if they are whole microseconds, or keep the number."""
    if target.name != ("timestamptz" if source.encoding == "nanos-utc" else "timestamp"):
        return _convert_plain(source, target, path)
    return Conversion(_to_timestamp(f"{path} div 1000", target), f"{path} % 1000 != 0")


def _convert_millis_since_1970(source: Scalar, target: Primitive, path: str) -> Conversion | None:
    """Convert milliseconds to a timestamp in the years 1 to 9999."""
    if target != source.type:
        return None
    holds = f"{path} BETWEEN {FIRST_SECOND * 1000} AND {LAST_SECOND * 1000 + 999}"
    value = f"CASE WHEN {holds} THEN {_to_timestamp(f'{path} * 1000', target)} END"
    return Conversion(value, f"NOT ({holds})")


def _convert_instant(_: Scalar, target: Primitive, path: str) -> Conversion | None:
    """Convert Protobuf's seconds and nanoseconds, if they are in range and whole microseconds."""
    if target.name != "timestamptz":
        return None
    seconds, nanos = f"{path}.seconds", f"{path}.nanos"
    holds = (
        f"{seconds} BETWEEN {FIRST_SECOND} AND {LAST_SECOND} AND {nanos} BETWEEN 0 AND 999999999 "
        f"AND {nanos} % 1000 = 0"
    )
    value = f"timestamp_micros({seconds} * 1000000 + {nanos} div 1000)"
    mismatch = f"{path} IS NOT NULL AND NOT ({holds})"
    return Conversion(f"CASE WHEN {holds} THEN {value} END", mismatch)


def _convert_uuid_bytes(_: Scalar, target: Primitive, path: str) -> Conversion | None:
    """Convert sixteen bytes to a UUID's text, or keep them."""
    if target.name in {"uuid", "string"}:
        return Conversion(_format_uuid(path))
    is_bytes = target in (Primitive("binary"), Primitive("fixed", (16,)))
    return Conversion(path, is_identity=True) if is_bytes else None


def _to_timestamp(micros: str, target: Primitive) -> str:
    """Write the SQL from microseconds since 1970 to a timestamp, with or without a zone."""
    if target.name == "timestamptz":
        return f"timestamp_micros({micros})"
    seconds = f"CAST({micros} AS DECIMAL(19,0)) / 1000000"
    return f"TIMESTAMP_NTZ'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds})"


def _format_uuid(path: str) -> str:
    digits = f"lower(hex({path}))"
    groups = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    parts = ", ".join(f"substring({digits}, {start}, {length})" for start, length in groups)
    return f"CASE WHEN {path} IS NOT NULL THEN concat_ws('-', {parts}) END"


def _not_convertible(source: Source, target: ColumnType, name: str) -> NotConvertibleError:
    kind = {Sequence: "a list", Dictionary: "a map", Record: "a record"}.get(type(source), "")
    if isinstance(source, Scalar):
        kind = format_type(source.type) + (f" ({source.encoding})" if source.encoding else "")
    return NotConvertibleError(f"{name} is {kind}, which {format_type(target)} cannot hold exactly")


_ENCODINGS: Mapping[str, Callable[[Scalar, Primitive, str], Conversion | None]] = {
    "": _convert_plain,
    "decimal": _convert_decimal,
    "enum": _convert_enum,
    "instant": _convert_instant,
    MILLIS: _convert_millis_since_1970,
    "nanos-local": _convert_nanos,
    "nanos-utc": _convert_nanos,
    "time-millis": _convert_millis,
    "uuid-bytes": _convert_uuid_bytes,
    SYMBOLS: _convert_symbols,
    "wrapped": _convert_wrapped,
}
