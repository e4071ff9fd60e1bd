"""Every property of Iceberg has a type, a range and a verdict; a wrong one is refused by name."""

import os
import re
import zipfile
from pathlib import Path

import pytest
from pydantic import ValidationError
from pyiceberg.table import TableProperties
from support.lake import make_stream

from frazil.streams.column_types import FieldError
from frazil.streams.table_properties import (
    RULES,
    find_rule,
    list_wrong_properties,
    validate_properties,
)

JARS = Path(os.environ.get("FRAZIL_JARS", Path(__file__).parents[3] / ".frazil" / "jars"))
FREE = {"comment"}
"""The only property of Iceberg that takes any text."""

WRONG = (
    ("format-version", "1"),
    ("write.parquet.compression-level", "fast"),
    ("write.parquet.compression-level", "0"),
    ("write.parquet.compression-level", "23"),
    ("write.parquet.compression-codec", "UNCOMPRESSED"),
    ("write.parquet.row-group-size-bytes", "0"),
    ("write.parquet.row-group-size-bytes", "2147483648"),
    ("write.parquet.page-row-limit", "0"),
    ("write.parquet.page-size-bytes", "63"),
    ("write.parquet.page-size-bytes", "2147483647"),
    ("write.parquet.bloom-filter-max-bytes", "2147483647"),
    ("write.parquet.page-version", "v3"),
    ("write.parquet.row-group-check-min-record-count", "10001"),
    ("write.parquet.bloom-filter-fpp.column.id", "1.5"),
    ("write.parquet.bloom-filter-enabled.column.id", "yes"),
    ("write.avro.compression-codec", "snappy"),
    ("write.manifest.compression-codec", "snappy"),
    ("write.target-file-size-bytes", "-1"),
    ("write.target-file-size-bytes", "9223372036854775808"),
    ("write.location-provider.impl", "com.example.Locations"),
    ("write.py-location-provider.impl", "example.Locations"),
    ("write.object-storage.enabled", "on"),
    ("write.object-storage.path", "s3://other/data"),
    ("write.data.path", "s3://other/data"),
    ("write.metadata.path", "file:///other"),
    ("write.metadata.metrics.default", "most"),
    ("write.metadata.metrics.default", "truncate(0)"),
    ("write.metadata.metrics.column.id", "truncate"),
    ("write.metadata.previous-versions-max", "some"),
    ("write.summary.partition-limit", "10"),
    ("write.spark.accept-any-schema", "true"),
    ("write.delete.mode", "copy"),
    ("write.delete.granularity", "partition"),
    ("write.merge.isolation-level", "none"),
    ("read.split.target-size", "0"),
    ("read.split.planning-lookback", "-1"),
    ("commit.retry.num-retries", "4.5"),
    ("commit.retry.min-wait-ms", "2147483648"),
    ("commit.manifest.min-count-to-merge", "0"),
    ("history.expire.min-snapshots-to-keep", "0"),
    ("history.expire.max-ref-age-ms", "1"),
    ("gc.enabled", "false"),
    ("schema.name-mapping.default", "{"),
    ("encryption.key-id", "k1"),
    ("encryption.data-key-length", "16"),
    ("current-snapshot-id", "1"),
    ("frazil.hint.orders", "x"),
)


@pytest.mark.parametrize(("key", "value"), WRONG, ids=[f"{k}={v}" for k, v in WRONG])
def test_a_property_that_breaks_a_later_step_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(FieldError) as caught:
        validate_properties({"comment": "any text", key: value})

    assert caught.value.path == (key,)
    assert str(caught.value).startswith(("must ", "is refused: ", "properties ", "needs "))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "uncompressed"])
def test_a_compression_level_needs_a_codec_that_has_levels(codec: str) -> None:
    with pytest.raises(FieldError, match=f"needs zstd, not {codec}"):
        validate_properties(
            {
                "write.parquet.compression-codec": codec,
                "write.parquet.compression-level": "3",
            }
        )


@pytest.mark.parametrize(
    "properties",
    [
        {"write.parquet.compression-level": "22", "write.parquet.compression-codec": "zstd"},
        {"write.parquet.row-group-check-min-record-count": "10000"},
        {
            "write.parquet.row-group-check-min-record-count": "20000",
            "write.parquet.row-group-check-max-record-count": "20000",
        },
        {"write.metadata.metrics.default": "truncate(32)"},
        {
            "write.metadata.metrics.default": "Truncate(16)",
            "write.parquet.compression-codec": "ZSTD",
        },
        {"write.metadata.metrics.column.id": "none"},
        {"write.distribution-mode": "HASH"},
        {"write.object-storage.enabled": "true", "commit.retry.num-retries": "0"},
        {"owner.team": "sales", "comment": "any text", "write.of-another-engine": "x"},
    ],
    ids=str,
)
def test_what_works_is_accepted(properties: dict[str, str]) -> None:
    assert list(list_wrong_properties(properties)) == []


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("Write.Format.Default", "write write.format.default"),
        (" write.format.default", "write write.format.default"),
        ("write.format.default\t", "write write.format.default"),
        ("FORMAT-VERSION", "write format-version"),
        ("Write.Metadata.Metrics.Column.Id", "write write.metadata.metrics.column.Id"),
        ("Encryption.key-id", "write encryption.key-id"),
        ("Frazil.hint.orders", "write frazil.hint.orders"),
        ("", "has a name"),
        ("  ", "has a name"),
        ("comment ", "has blanks at its ends; write comment"),
        ("\nowner.team", "has blanks at its ends; write owner.team"),
    ],
)
def test_a_name_that_no_engine_reads_is_refused(key: str, reason: str) -> None:
    with pytest.raises(FieldError, match=re.escape(reason)) as caught:
        validate_properties({"comment": "any text", key: "parquet"})

    assert caught.value.path == (key,)


PARTS = {
    "id": "long",
    "shop": "struct<city: string, at: struct<day: date>>",
    "tags": "list<struct<name: string>>",
    "counts": "map<string, long>",
}
OF_COLUMNS = [key for key in RULES if key.endswith(".column.")]


def of_column(key: str) -> str:
    """Return a value that a property of a column may have."""
    values = (value for value in ("full", "true", "0.01", "100") if RULES[key].accepts(value))
    return next(values)


@pytest.mark.parametrize("key", OF_COLUMNS)
@pytest.mark.parametrize(
    "name",
    ["nope", "ID", "", "id.x", "shop.nope", "shop.at.day.x", "tags.name", "counts.a", "id.", "."],
)
def test_a_property_of_a_column_names_one(key: str, name: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(f"{name!r} is not a column")) as caught:
        make_stream(
            value={"columns": PARTS},
            table={"name": "demo.orders", "properties": {key + name: of_column(key)}},
        )

    (detail,) = caught.value.errors()
    assert detail["ctx"]["error"].path == ("table", "properties", key + name)


@pytest.mark.parametrize("key", OF_COLUMNS)
def test_a_property_may_name_a_part_of_a_column(key: str) -> None:
    names = ["id", "shop", "shop.city", "shop.at.day", "tags.element.name", "counts.value"]
    names += ["counts.key", "_kafka.offset"]
    properties = {key + name: of_column(key) for name in names}

    stream = make_stream(
        value={"columns": PARTS}, table={"name": "demo.orders", "properties": properties}
    )

    assert stream.table.properties == properties


def list_properties_of_java() -> set[str]:
    """Return the names in the constants of Iceberg's class `TableProperties`."""
    jar = next((JARS / "spark").glob("iceberg-spark-runtime-*.jar"), None)
    if jar is None:
        pytest.skip("Iceberg's jar is not downloaded")
    code = zipfile.ZipFile(jar).read("org/apache/iceberg/TableProperties.class")
    constants = re.finditer(rb"\x01(..)([a-z][a-z0-9-]*(?:[.-][a-z0-9-]+)+\.?)", code, re.DOTALL)
    return {found[2].decode() for found in constants if int.from_bytes(found[1]) == len(found[2])}


def test_every_property_of_iceberg_has_a_rule() -> None:
    found = list_properties_of_java()

    assert "write.parquet.row-group-size-bytes" in found
    assert len(found) > 100
    assert {name for name in found - FREE if find_rule(name) is None} == set()


def test_every_property_of_pyiceberg_has_a_rule() -> None:
    values = {value for value in vars(TableProperties).values() if isinstance(value, str)}
    names = {value for value in values if re.fullmatch(r"[a-z-]+(\.[a-z-]+)+", value)}

    missing = {name for name in names if find_rule(name) is None and f"{name}." not in RULES}
    assert names
    assert missing == {TableProperties.__module__}


@pytest.mark.parametrize(
    ("key", "value", "stops"),
    [
        ("write.data.path", "s3://bucket/data", True),
        ("write.data.path", "/elsewhere", False),
        ("write.summary.partition-limit", "10", False),
        ("write.summary.partition-limit", "ten", True),
        ("read.split.target-size", "0", False),
        ("gc.enabled", "false", False),
        ("write.parquet.page-row-limit", "0", True),
        ("write.location-provider.impl", "com.example.Locations", True),
        ("encryption.key-id", "k1", True),
    ],
)
def test_in_a_table_only_what_stops_its_batches_is_told_apart(
    key: str,
    value: str,
    stops: bool,  # noqa: FBT001
) -> None:
    (wrong,) = list_wrong_properties({key: value, "frazil.hint.orders": "{}"}, "file:///lake/a")

    assert (wrong.key, wrong.stops_batches) == (key, stops)
