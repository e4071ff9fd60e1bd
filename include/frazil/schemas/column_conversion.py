"""How a value that a registered schema describes becomes a column's value, in SQL.

A value either has an exact form in its column, or is looked at record by record (`misfit`), or has
none: then the schema is refused as a whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from frazil.schemas.column_decoding import UUID_PATTERN
from frazil.schemas.source_types import (
    Dictionary,
    NoExactFormError,
    Record,
    Scalar,
    Sequence,
    Source,
    Unsupported,
    list_fields,
)
from frazil.streams.column_types import (
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    format_type,
    to_spark_ddl,
)

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, which is what Protobuf's instants may say."""

_WIDENINGS = {("int", "long"), ("int", "double"), ("float", "double")}
_INTEGER_DIGITS = {"int": 10, "long": 19}


@dataclass(frozen=True)
class Fitted:
    """SQL for a value in its column's own type, and for what is wrong with one that does not fit.

    A plain value already travels in its column's type.
    """

    value: str
    misfit: str | None = None
    is_plain: bool = False


def fit_columns(
    root: Source, columns: tuple[Column, ...], path: str, *, is_flat: bool, whole: str
) -> dict[str, Fitted]:
    """Say how the values at `path` become columns; a field that the schema lacks is null.

    Raises:
        NoExactFormError: a column and its field have no exact form in common.
    """
    fields = list_fields(root, is_flat=is_flat, whole=whole)
    if not any(column.name in fields for column in columns):
        message = f"has no field of {', '.join(column.name for column in columns)}"
        raise NoExactFormError(message)
    is_record = is_flat and isinstance(root, Record)
    return {
        column.name: _fit_field(
            fields.get(column.name),
            column.type,
            f"{path}.`{column.name}`" if is_record else path,
            column.name,
        )
        for column in columns
    }


def _fit_field(source: Source | None, target: ColumnType, path: str, name: str) -> Fitted:
    if source is None:
        return Fitted(f"CAST(NULL AS {to_spark_ddl(target)})")
    return fit_value(source, target, path, name)


def fit_value(source: Source, target: ColumnType, path: str, name: str, depth: int = 0) -> Fitted:
    """Write the SQL from a decoded value to a value of the column's type.

    Raises:
        NoExactFormError: there is no exact way.
    """
    match source, target:
        case Scalar(), Primitive():
            return _fit_scalar(source, target, path, name)
        case Sequence(element), ListType(wanted, _):
            item = f"e{depth}"
            inner = fit_value(element, wanted, item, f"{name}.element", depth + 1)
            value = path if inner.is_plain else f"transform({path}, {item} -> {inner.value})"
            misfit = f"exists({path}, {item} -> {inner.misfit})" if inner.misfit else None
            return Fitted(value, misfit, inner.is_plain)
        case Dictionary(), MapType():
            return _fit_dictionary(source, target, path, name, depth)
        case Record(), StructType():
            return _fit_record(source, target, path, name, depth)
        case Unsupported(reason), _:
            message = f"{name} {reason}"
            raise NoExactFormError(message)
    raise _no_form(source, target, name)


def _fit_dictionary(
    source: Dictionary, target: MapType, path: str, name: str, depth: int
) -> Fitted:
    item = f"v{depth}"
    inner = fit_value(source.value, target.value, item, f"{name}.value", depth + 1)
    value = path
    if not inner.is_plain:
        value = f"transform_values({value}, (k{depth}, {item}) -> {inner.value})"
    has_text = source.key.type.name == "string"
    if not has_text:
        value = f"transform_keys({value}, (k{depth}, {item}) -> CAST(k{depth} AS STRING))"
    misfits = [f"exists(map_values({path}), {item} -> {inner.misfit})"] if inner.misfit else []
    if has_text:
        misfits.append(f"exists(map_keys({path}), k{depth} -> {_write_illegible(f'k{depth}')})")
    return Fitted(value, " OR ".join(misfits) or None, inner.is_plain and has_text)


def _fit_record(source: Record, target: StructType, path: str, name: str, depth: int) -> Fitted:
    have = dict(source.fields)
    if not any(field.name in have for field in target.fields):
        raise _no_form(source, target, name)
    fitted = {
        field.name: _fit_inner(have, field, f"{path}.`{field.name}`", name, depth)
        for field in target.fields
    }
    misfits = [f"coalesce({f.misfit}, false)" for f in fitted.values() if f.misfit]
    misfit = " OR ".join(misfits) or None
    if list(fitted) == list(have) and all(f.is_plain for f in fitted.values()):
        return Fitted(path, misfit, is_plain=True)
    parts = ", ".join(f"'{n}', {f.value}" for n, f in fitted.items())
    return Fitted(f"CASE WHEN {path} IS NOT NULL THEN named_struct({parts}) END", misfit)


def _fit_inner(
    have: Mapping[str, Source], field: Column, path: str, name: str, depth: int
) -> Fitted:
    source = have.get(field.name)
    if source is None:
        return _fit_field(None, field.type, path, name)
    return fit_value(source, field.type, path, f"{name}.{field.name}", depth)


def _fit_scalar(source: Scalar, target: Primitive, path: str, name: str) -> Fitted:
    """Fit one value; each form has its own exact ways."""
    fitted = _FORMS[source.form](source, target, path)
    if fitted is None:
        raise _no_form(source, target, name)
    return fitted


def _fit_own(given: Scalar, target: Primitive, path: str) -> Fitted | None:
    """Fit what travels in its own type: the same type, a wider one, or one that is looked at."""
    source = given.type
    if source.name == "uuid" or target.name == "uuid":
        is_text = {source.name, target.name} <= {"uuid", "string"}
        misfit = f"NOT ({path} RLIKE '{UUID_PATTERN}')" if target.name == "uuid" else None
        return Fitted(path, misfit or _write_illegible(path), is_plain=True) if is_text else None
    if source == target or (source.name, target.name) == ("fixed", "binary"):
        misfit = _write_illegible(path) if source.name == "string" else None
        return Fitted(path, misfit, is_plain=True)
    if (source.name, target.name) in _WIDENINGS:
        return Fitted(f"CAST({path} AS {to_spark_ddl(target)})")
    match source, target:
        case Primitive("int" | "long" as word, _), Primitive("decimal", (precision, scale)):
            if precision - scale >= _INTEGER_DIGITS[word]:
                return Fitted(f"CAST({path} AS {to_spark_ddl(target)})")
        case Primitive("binary", _), Primitive("fixed", (length,)):
            return Fitted(path, f"octet_length({path}) != {length}", is_plain=True)
    return None


def _write_illegible(text: str) -> str:
    """Write the SQL that finds a text of bytes that are not UTF-8: Avro's readers take them all."""
    return f"NOT is_valid_utf8({text})"


def _fit_wrapped(source: Scalar, target: Primitive, path: str) -> Fitted | None:
    fitted = _fit_own(source, target, f"{path}.value")
    return fitted and Fitted(fitted.value, fitted.misfit)


def _fit_enum(source: Scalar, target: Primitive, path: str) -> Fitted | None:
    """Name the number of an enumeration; one that the schema does not know has no name."""
    if target.name == "int":
        return Fitted(path, is_plain=True)
    if target.name != "string":
        return None
    cases = " ".join(f"WHEN {number} THEN '{name}'" for number, name in source.symbols)
    numbers = ", ".join(str(number) for number, _ in source.symbols)
    return Fitted(f"CASE {path} {cases} END", f"{path} NOT IN ({numbers})")


def _fit_decimal(source: Scalar, target: Primitive, path: str) -> Fitted | None:
    """Let a decimal become another if no digit is lost; it travels with all digits there are."""
    if target.name != "decimal":
        return None
    value = f"try_cast({path} AS {to_spark_ddl(target)})"
    scale = source.type.parameters[1]
    back = f"try_cast({value} AS DECIMAL(38,{scale}))"
    return Fitted(value, f"{path} IS NOT NULL AND NOT coalesce({back} = {path}, false)")


def _fit_millis(_: Scalar, target: Primitive, path: str) -> Fitted | None:
    """Let a time of day in milliseconds become microseconds."""
    return Fitted(f"CAST({path} AS BIGINT) * 1000") if target.name == "long" else None


def _fit_nanos(source: Scalar, target: Primitive, path: str) -> Fitted | None:
    """Let nanoseconds stay a number, or become an instant if they are whole microseconds."""
    if target.name != ("timestamptz" if source.form == "nanos-utc" else "timestamp"):
        return _fit_own(source, target, path)
    return Fitted(_count_micros(f"{path} div 1000", target), f"{path} % 1000 != 0")


def _fit_instant(_: Scalar, target: Primitive, path: str) -> Fitted | None:
    """Let seconds and nanoseconds become an instant of microseconds, if they are one."""
    if target.name != "timestamptz":
        return None
    seconds, nanos = f"{path}.seconds", f"{path}.nanos"
    holds = (
        f"{seconds} BETWEEN {FIRST_SECOND} AND {LAST_SECOND} AND {nanos} BETWEEN 0 AND 999999999 "
        f"AND {nanos} % 1000 = 0"
    )
    value = f"timestamp_micros({seconds} * 1000000 + {nanos} div 1000)"
    return Fitted(f"CASE WHEN {holds} THEN {value} END", f"{path} IS NOT NULL AND NOT ({holds})")


def _fit_uuid_bytes(_: Scalar, target: Primitive, path: str) -> Fitted | None:
    """Let sixteen bytes be spelt, or stay as they are."""
    if target.name in {"uuid", "string"}:
        return Fitted(_spell_uuid(path))
    is_bytes = target in (Primitive("binary"), Primitive("fixed", (16,)))
    return Fitted(path, is_plain=True) if is_bytes else None


def _count_micros(micros: str, target: Primitive) -> str:
    """Count microseconds since 1970; a wall clock's by an interval, which knows no zone."""
    if target.name == "timestamptz":
        return f"timestamp_micros({micros})"
    seconds = f"CAST({micros} AS DECIMAL(19,0)) / 1000000"
    return f"TIMESTAMP_NTZ'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds})"


def _spell_uuid(path: str) -> str:
    digits = f"lower(hex({path}))"
    places = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    parts = ", ".join(f"substring({digits}, {start}, {length})" for start, length in places)
    return f"CASE WHEN {path} IS NOT NULL THEN concat_ws('-', {parts}) END"


def _no_form(source: Source, target: ColumnType, name: str) -> NoExactFormError:
    word = {Sequence: "a list", Dictionary: "a map", Record: "a record"}.get(type(source), "")
    if isinstance(source, Scalar):
        word = format_type(source.type) + (f" ({source.form})" if source.form else "")
    return NoExactFormError(f"{name} is {word}, which is not exactly {format_type(target)}")


_FORMS: Mapping[str, Callable[[Scalar, Primitive, str], Fitted | None]] = {
    "": _fit_own,
    "decimal": _fit_decimal,
    "enum": _fit_enum,
    "instant": _fit_instant,
    "nanos-local": _fit_nanos,
    "nanos-utc": _fit_nanos,
    "time-millis": _fit_millis,
    "uuid-bytes": _fit_uuid_bytes,
    "wrapped": _fit_wrapped,
}
