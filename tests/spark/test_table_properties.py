"""With every value at the edge of what a stream file may set, Spark and PyIceberg write a batch."""

import re
from typing import Any, cast

import pytest
from conftest import Lab, good_values

from frazil.streams.table_properties import RULES

pytestmark = [pytest.mark.spark, pytest.mark.stack]

_RANGE = re.compile(r"must be a whole number from (\d+) to (\d+)\Z")
_OTHERS = {
    "lowest": {
        "write.parquet.compression-level": "1",
        "write.parquet.compression-codec": "zstd",
        "write.parquet.bloom-filter-fpp.column.id": "0.000001",
        "write.parquet.bloom-filter-enabled.column.id": "true",
        "write.parquet.dict-encoding-enabled.column.id": "false",
        "write.parquet.page-version": "v2",
        "write.avro.compression-codec": "zstd",
        "write.manifest.compression-codec": "zstd",
        "write.manifest.compression-level": "1",
        "write.metadata.metrics.default": "none",
        "write.metadata.compression-codec": "gzip",
        "write.distribution-mode": "range",
        "write.object-storage.enabled": "true",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.spark.fanout.enabled": "true",
    },
    "highest": {
        "write.parquet.compression-level": "22",
        "write.parquet.bloom-filter-enabled.column.name": "true",
        "write.metadata.metrics.default": "truncate(999999999)",
        "write.metadata.metrics.column.id": "full",
        "write.manifest.compression-level": "9",
        "write.distribution-mode": "hash",
        "commit.manifest-merge.enabled": "false",
    },
}


def list_edges(which: str) -> dict[str, str]:
    group = 1 if which == "lowest" else 2
    ranges = {key: _RANGE.match(rule.text) for key, rule in RULES.items()}
    edges = {key: found[group] for key, found in ranges.items() if found}
    return {f"{key}id" if key.endswith(".") else key: value for key, value in edges.items()}


@pytest.mark.parametrize("which", ["lowest", "highest"])
@pytest.mark.parametrize("least", ["0", "1000000000"], ids=["workers", "Spark"])
def test_a_batch_is_written_with_every_property_at_its_edge(
    lab: Lab, which: str, least: str
) -> None:
    properties = {**list_edges(which), **_OTHERS[which]}
    assert len(properties) > 40
    lab.write_stream(table={"name": lab.table, "properties": properties})
    lab.create_topic()
    lab.produce([*good_values(60), b"{bad"])

    done = lab.frazil("run", lab.stream, "--json", FRAZIL_DIRECT_MIN_RECORDS=least)

    published = cast("dict[str, Any]", done.json)
    assert (published.get("outcome"), published.get("rows_written")) == ("PUBLISHED", 60), done.err
    assert lab.frazil("audit", lab.stream).code == 0
    assert lab.frazil("maintain", lab.stream, "--no-dry-run").code == 0
