"""PySpark's private names reach the JVM: one file uses two of them, for what PySpark lacks."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
BRIDGES = {"_gateway", "_jvm", "_jsc", "_jdf", "_jc", "_jsparkSession", "_jconf", "_jseq", "_sc"}
"""Attributes of PySpark's objects that belong to py4j."""

USED = {"spark_jobs/frazil_spark/job.py": {"_gateway", "_jsc"}}
"""CPU time of stages and the number of executors, which PySpark itself does not tell."""


def find_private(source: str) -> Iterator[str]:
    """Yield the bridges that a file uses, and the private names that it imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in BRIDGES:
            yield node.attr
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark"):
            full = (f"{node.module}.{each.name}" for each in node.names)
            yield from (name for name in full if "._" in name)


@pytest.mark.parametrize(
    "source",
    ["spark._jvm.java", "session.sparkContext._gateway", "from pyspark.sql.types import _parse"],
)
def test_the_scan_finds_private_names(source: str) -> None:
    assert list(find_private(source))


def test_only_the_frame_of_jobs_uses_private_names_of_pyspark() -> None:
    paths = [path for name in ("include", "spark_jobs") for path in (PROJECT / name).rglob("*.py")]
    found = {
        str(path.relative_to(PROJECT)): names
        for path in paths
        if (names := set(find_private(path.read_text())))
    }

    assert found == USED
