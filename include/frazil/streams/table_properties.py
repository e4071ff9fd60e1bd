"""Iceberg's table properties: their type, their range, and those that Frazil refuses, with why.

The table has every property of Iceberg's and PyIceberg's `TableProperties`. Properties that are not
listed belong to other programs, and are left alone.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlparse

from frazil.ledger.keys import KAFKA_COLUMN
from frazil.streams.column_types import (
    MAX_LONG,
    Column,
    ColumnType,
    FieldError,
    ListType,
    MapType,
    StructType,
)

Reader: TypeAlias = Literal["batch", "other"]
"""Whether a batch fails with a wrong value, or only maintenance or another engine."""

_INT, _LONG = 2**31 - 1, MAX_LONG
_EQUAL_SCHEMES = {"s3a": "s3", "s3n": "s3", "": "file"}


@dataclass(frozen=True)
class Rule:
    """What a property may be: `text` completes "it must …" or says why it is refused."""

    text: str
    accepts: Callable[[str], bool]
    reader: Reader = "batch"


def _whole(low: int, high: int = _INT, reader: Reader = "batch") -> Rule:
    def accepts(value: str) -> bool:
        digits = re.fullmatch(r"\d{1,19}", value, re.ASCII)
        return digits is not None and low <= int(value) <= high

    return Rule(f"must be a whole number from {low} to {high}", accepts, reader)


def _choice(*values: str, reader: Reader = "batch", why: str = "") -> Rule:
    text = " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))
    return Rule(f"must be {text}{why}", lambda value: value.lower() in values, reader)


def _refused(why: str, reader: Reader = "batch") -> Rule:
    return Rule(f"is refused: {why}; remove it", lambda _: False, reader)


def _matches(pattern: str, text: str, reader: Reader = "batch") -> Rule:
    return Rule(text, lambda v: bool(re.fullmatch(pattern, v, re.ASCII)), reader)


def _is_fraction(value: str) -> bool:
    return bool(re.fullmatch(r"0?\.\d{1,15}", value, re.ASCII)) and 0 < float(value) < 1


def _is_name_mapping(value: str) -> bool:
    """Return whether a text is a list of `{"field-id": 5, "names": ["a"], "fields": […]}`.

    Source: section "Name mapping serialization" of Iceberg's specification.
    """
    try:
        return _are_mapped_fields(json.loads(value))
    except (ValueError, RecursionError):
        return False


def _are_mapped_fields(fields: object) -> bool:
    return isinstance(fields, list) and all(
        isinstance(each, dict)
        and isinstance(each.get("field-id", 0), int)
        and isinstance(names := each.get("names"), list)
        and all(isinstance(name, str) for name in names)
        and _are_mapped_fields(each.get("fields") or [])
        for each in fields
    )


_OWN = "frazil."
_FLAG, _OTHERS_FLAG = _choice("true", "false"), _choice("true", "false", reader="other")
_INT_ABOVE_0, _LONG_ABOVE_0 = _whole(1), _whole(1, _LONG)
_WAIT = _whole(0)
_MODE = _choice("none", "hash", "range")
_OTHERS_MODE = _choice("none", "hash", "range", reader="other")
_ISOLATION = _choice("serializable", "snapshot", reader="other")
_ROW_LEVEL = _choice("copy-on-write", "merge-on-read", reader="other")
_CODEC = _matches(
    "(?i:zstd|gzip|snappy|lz4)|uncompressed", "must be zstd, gzip, snappy, lz4 or uncompressed"
)
_AVRO_CODEC = _matches("gzip|zstd", "must be gzip or zstd, which every reader has")
_METRICS = _matches(
    r"(?i:none|counts|full|truncate\(0*[1-9]\d{0,8}\))",
    "must be none, counts, full or truncate(n) with n above 0",
)
_LEVEL = _matches(r"\d{1,2}", "must be a whole number from 1 to 22, with zstd")
_LEVEL_KEY = "write.parquet.compression-level"
_HIGHEST_LEVELS = {"zstd": 22}
_CHECKS = (
    ("write.parquet.row-group-check-min-record-count", "100"),
    ("write.parquet.row-group-check-max-record-count", "10000"),
)
"""Properties of which the first must not be above the second, with their defaults."""
_PARTITIONS_IN_SUMMARY = _choice(
    "0", why=": partition values would be copied into snapshot summaries, which outlive erasure"
)
_PLANNING = _choice("auto", "local", "distributed", reader="other")
_CLASS = _refused("other programs that write the table do not have this class")
_FOLDER = _refused(
    "erasure and orphan removal look in the table's own folder only; the catalog's warehouse "
    "decides where tables are"
)
_ICEBERGS = _refused("Iceberg reserves it, and does not store it", "other")
_ENCRYPTION = _refused("Frazil cannot read encrypted files")
_PARQUET: Mapping[str, Rule] = {
    "row-group-size-bytes": _INT_ABOVE_0,
    "page-size-bytes": _whole(64, 2**26),  # of memory that Parquet's Java writer takes at once
    "page-row-limit": _INT_ABOVE_0,
    "page-version": _choice("v1", "v2"),
    "dict-size-bytes": _whole(64),
    "compression-codec": _CODEC,
    "compression-level": _LEVEL,
    "row-group-check-min-record-count": _INT_ABOVE_0,
    "row-group-check-max-record-count": _INT_ABOVE_0,
}
_ORC: Mapping[str, Rule] = {
    "stripe-size-bytes": _whole(1, _LONG, "other"),
    "block-size-bytes": _whole(1, _LONG, "other"),
    "vectorized.batch-size": _whole(1, reader="other"),
    "compression-codec": _choice("zlib", "snappy", "lzo", "lz4", "zstd", "none", reader="other"),
    "compression-strategy": _choice("speed", "compression", reader="other"),
}


def _for_others(rule: Rule) -> Rule:
    return Rule(rule.text, rule.accepts, "other")


RULES: Mapping[str, Rule] = {
    "format-version": _choice("2", why=", the only one that is supported"),
    "write.format.default": _choice(
        "parquet",
        why=": the fast path, erasure and replay write and read Parquet files only",
    ),
    "write.delete.format.default": _choice("parquet", reader="other"),
    "gc.enabled": _choice(
        "true",
        reader="other",
        why=": otherwise maintenance could expire no snapshot and remove no orphan file",
    ),
    "commit.retry.num-retries": _WAIT,
    "commit.retry.min-wait-ms": _WAIT,
    "commit.retry.max-wait-ms": _WAIT,
    "commit.retry.total-timeout-ms": _WAIT,
    "commit.status-check.num-retries": _WAIT,
    "commit.status-check.min-wait-ms": _whole(0, _LONG),
    "commit.status-check.max-wait-ms": _whole(0, _LONG),
    "commit.status-check.total-timeout-ms": _whole(0, _LONG),
    "commit.manifest.target-size-bytes": _LONG_ABOVE_0,
    "commit.manifest.min-count-to-merge": _INT_ABOVE_0,
    "commit.manifest-merge.enabled": _FLAG,
    **{f"write.parquet.{name}": rule for name, rule in _PARQUET.items()},
    **{f"write.delete.parquet.{name}": _for_others(rule) for name, rule in _PARQUET.items()},
    "write.parquet.row-group-limit": _INT_ABOVE_0,
    "write.parquet.row-group-size-track-uncompressed": _FLAG,
    "write.parquet.shred-variants": _FLAG,
    "write.parquet.variant-inference-buffer-size": _INT_ABOVE_0,
    "write.parquet.bloom-filter-max-bytes": _whole(32, 2**27),  # the range of Parquet's writer
    "write.parquet.bloom-filter-adaptive-enabled": _FLAG,
    "write.parquet.bloom-filter-fpp.column.": Rule(
        "must be a fraction between 0 and 1, for example 0.01", _is_fraction
    ),
    "write.parquet.bloom-filter-ndv.column.": _LONG_ABOVE_0,
    "write.parquet.bloom-filter-enabled.column.": _FLAG,
    "write.parquet.stats-enabled.column.": _FLAG,
    "write.parquet.dict-encoding-enabled.column.": _FLAG,
    "write.avro.compression-codec": _AVRO_CODEC,
    "write.delete.avro.compression-codec": _choice("gzip", "zstd", "snappy", reader="other"),
    "write.avro.compression-level": _matches(r"-?\d{1,2}", "must be a whole number", "other"),
    "write.delete.avro.compression-level": _matches(
        r"-?\d{1,2}", "must be a whole number", "other"
    ),
    "write.manifest.compression-codec": _AVRO_CODEC,
    "write.manifest.compression-level": _matches(r"[1-9]", "must be a whole number from 1 to 9"),
    **{f"write.orc.{name}": rule for name, rule in _ORC.items()},
    **{f"write.delete.orc.{name}": rule for name, rule in _ORC.items()},
    "write.orc.bloom.filter.columns": Rule("lists columns", lambda _: True, "other"),
    "write.orc.bloom.filter.fpp": Rule("must be a fraction", _is_fraction, "other"),
    "read.split.target-size": _whole(1, _LONG, "other"),
    "read.split.metadata-target-size": _whole(1, _LONG, "other"),
    "read.split.planning-lookback": _whole(1, reader="other"),
    "read.split.open-file-cost": _whole(0, _LONG, "other"),
    "read.split.adaptive-size.enabled": _OTHERS_FLAG,
    "read.parquet.vectorization.enabled": _OTHERS_FLAG,
    "read.parquet.vectorization.batch-size": _whole(1, reader="other"),
    "read.orc.vectorization.enabled": _OTHERS_FLAG,
    "read.orc.vectorization.batch-size": _whole(1, reader="other"),
    "read.data-planning-mode": _PLANNING,
    "read.delete-planning-mode": _PLANNING,
    "identifier-fields.rely": _OTHERS_FLAG,
    "write.object-storage.enabled": _FLAG,
    "write.object-storage.partitioned-paths": _FLAG,
    "write.object-storage.path": _FOLDER,
    "write.folder-storage.path": _FOLDER,
    "write.data.path": _FOLDER,
    "write.metadata.path": _FOLDER,
    "write.location-provider.impl": _CLASS,
    "write.py-location-provider.impl": _CLASS,
    "write.summary.partition-limit": _PARTITIONS_IN_SUMMARY,
    "write.metadata.compression-codec": _choice("none", "gzip"),
    "write.metadata.previous-versions-max": _WAIT,
    "write.metadata.delete-after-commit.enabled": _FLAG,
    "write.metadata.metrics.max-inferred-column-defaults": _WAIT,
    "write.metadata.metrics.column.": _METRICS,
    "write.metadata.metrics.default": _METRICS,
    "schema.name-mapping.default": Rule("must be a JSON list of fields", _is_name_mapping),
    "write.wap.enabled": _OTHERS_FLAG,
    "write.target-file-size-bytes": _LONG_ABOVE_0,
    "write.delete.target-file-size-bytes": _whole(1, _LONG, "other"),
    "write.spark.fanout.enabled": _FLAG,
    "write.spark.accept-any-schema": _choice("false", why=", or Spark checks no column's type"),
    "write.spark.auto-schema-evolution.enabled": _FLAG,
    "write.spark.advisory-partition-size-bytes": _LONG_ABOVE_0,
    "compatibility.snapshot-id-inheritance.enabled": _OTHERS_FLAG,
    "engine.hive.enabled": _OTHERS_FLAG,
    "engine.hive.lock-enabled": _OTHERS_FLAG,
    "write.distribution-mode": _MODE,
    "history.expire.max-snapshot-age-ms": _whole(0, _LONG, "other"),
    "history.expire.min-snapshots-to-keep": _whole(1, reader="other"),
    "history.expire.max-ref-age-ms": _refused("it would expire staging branches", "other"),
    "write.delete.granularity": _choice(
        "file",
        reader="other",
        why=": Iceberg's compaction does not count the deletes of a whole partition",
    ),
    **{f"write.{verb}.isolation-level": _ISOLATION for verb in ("delete", "update", "merge")},
    **{f"write.{verb}.mode": _ROW_LEVEL for verb in ("delete", "update", "merge")},
    **{f"write.{verb}.distribution-mode": _OTHERS_MODE for verb in ("delete", "update", "merge")},
    "write.upsert.enabled": _OTHERS_FLAG,
    "encryption.": _ENCRYPTION,
    _OWN: Rule("properties frazil.* are reserved; remove it", lambda _: False),
    **dict.fromkeys(
        (
            "uuid",
            "snapshot-count",
            "current-snapshot-summary",
            "current-snapshot-id",
            "current-snapshot-timestamp-ms",
            "current-schema",
            "default-partition-spec",
            "default-sort-order",
        ),
        _ICEBERGS,
    ),
}
"""Property, or the beginning of its name if it ends in a dot → its rule."""

_PREFIXES = tuple(key for key in RULES if key.endswith("."))


@dataclass(frozen=True)
class WrongProperty:
    """A property that a rule refuses; `stops_batches` if no batch can be written with it."""

    key: str
    value: str
    reason: str
    stops_batches: bool


def find_rule(key: str) -> Rule | None:
    """Return the rule of a property; None if Iceberg has no such property."""
    prefix = next((each for each in _PREFIXES if key.startswith(each)), key)
    return RULES.get(key) or RULES.get(prefix)


def list_wrong_properties(
    properties: Mapping[str, str], location: str | None = None
) -> Iterator[WrongProperty]:
    """Yield the properties that a rule refuses; with a location, of a table that exists."""
    for key, value in sorted(properties.items()):
        rule = None if location and key.startswith(_OWN) else find_rule(key)
        if rule is not None and not rule.accepts(value):
            stops = rule.reader == "batch" and not _is_harmless(rule, value, location)
            yield WrongProperty(key, value, rule.text, stops)
    yield from _list_wrong_pairs(properties)


def _is_harmless(rule: Rule, value: str, location: str | None) -> bool:
    """Return whether batches can be written although a stream file may not have the value."""
    if rule is _FOLDER and location is not None:
        return _scheme(value) == _scheme(location)
    return rule is _PARTITIONS_IN_SUMMARY and _WAIT.accepts(value)


def _scheme(address: str) -> str:
    scheme = urlparse(address).scheme
    return _EQUAL_SCHEMES.get(scheme, scheme)


def _list_wrong_pairs(properties: Mapping[str, str]) -> Iterator[WrongProperty]:
    """Yield properties that do not fit each other."""
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    level = properties.get(_LEVEL_KEY, "")
    highest = _HIGHEST_LEVELS.get(codec, 0)
    if _LEVEL.accepts(level) and not 1 <= int(level) <= highest:
        text = (
            f"must be from 1 to {highest} with {codec}" if highest else f"needs zstd, not {codec}"
        )
        yield WrongProperty(_LEVEL_KEY, level, text, stops_batches=True)
    least, most = (properties.get(key, default) for key, default in _CHECKS)
    if all(map(_INT_ABOVE_0.accepts, (least, most))) and int(least) > int(most):
        key, other = (key for key, _ in _CHECKS)
        text = f"must not be above {other}, which is {most}"
        yield WrongProperty(key, least, text, stops_batches=True)


def validate_properties(properties: Mapping[str, str]) -> None:
    """Check `table.properties` of a stream file.

    Raises:
        FieldError: a property is reserved, its value would make later steps fail, or its name is
            that of another one in another case, so that no engine would read it.
    """
    for key in properties:
        problem = _explain_name(key)
        if problem:
            raise FieldError((key,), problem)
    for wrong in list_wrong_properties(properties):
        raise FieldError((wrong.key,), wrong.reason)


def _explain_name(key: str) -> str:
    """Return why a property's name has no effect; empty if it may have one."""
    plain = key.strip()
    if not plain:
        return "a property has a name"
    lowered = plain.lower()
    if find_rule(key) is None and find_rule(lowered) is not None:
        prefix = next((each for each in _PREFIXES if lowered.startswith(each)), lowered)
        return f"has no effect in this spelling; write {prefix}{plain[len(prefix) :]}"
    return "" if plain == key else f"has blanks at its ends; write {plain}"


def validate_column_properties(properties: Mapping[str, str], columns: Sequence[Column]) -> None:
    """Check that the properties of single columns name columns of the table.

    Raises:
        FieldError: one does not, so that it would have no effect.
    """
    known = StructType(tuple(columns))
    for key in properties:
        prefix = next((each for each in _OF_COLUMNS if key.startswith(each)), None)
        name = key.removeprefix(prefix or key)
        if prefix and name.partition(".")[0] not in _ADDED and not _has_path(known, name):
            names = ", ".join([*(column.name for column in columns), KAFKA_COLUMN])
            reason = f"{name!r} is not a column of the table; those are: {names}"
            nested = "" if "." not in name else "; a part of one is shop.city, tags.element"
            raise FieldError(("table", "properties", key), reason + nested)


_ADDED = frozenset({KAFKA_COLUMN, "_deleted_at"})
"""The latter is in a state table with `deletes: mark`."""
_OF_COLUMNS = tuple(each for each in _PREFIXES if each.endswith(".column."))


def _has_path(column_type: ColumnType, path: str) -> bool:
    """Return whether a type has a part of this name, as Iceberg names the parts of columns."""
    head, _, rest = path.partition(".")
    match column_type:
        case StructType(fields):
            found = next((each.type for each in fields if each.name == head), None)
        case ListType(element, _):
            found = {"element": element}.get(head)
        case MapType(key, value, _):
            found = {"key": key, "value": value}.get(head)
        case _:
            return False
    return found is not None and ("." not in path or _has_path(found, rest))
