"""Every example of docs/types.md, decoded by Spark and by the Python workers of the fast path."""

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from conftest import Stack
from pyspark.sql import SparkSession
from support.decoding import decode_by_spark, decode_by_workers

from frazil.streams.column_types import PRIMITIVES

pytestmark = [pytest.mark.spark, pytest.mark.stack]

PAGE = (Path(__file__).parents[2] / "docs" / "types.md").read_text()
HEAD = re.compile(r"\| `(.+?)` \| in the table \|")
ROW = re.compile(r"\| `(.*)` \| (?:`(.*)`|dead letter) \|")
DEAD_LETTER = "dead letter"


def read_examples(text: str) -> dict[str, dict[str, str]]:
    """Read what becomes of each JSON value, by the type of its column."""
    examples: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        if head := HEAD.fullmatch(line):
            current = examples.setdefault(head[1], {})
        elif row := ROW.fullmatch(line):
            current[row[1]] = DEAD_LETTER if row[2] is None else row[2]
    return examples


EXAMPLES = read_examples(PAGE.partition("## JSON")[2].partition("\n## ")[0])


@pytest.fixture(scope="module")
def spark(stack: Stack) -> Iterator[SparkSession]:
    """Open a session of this module."""
    session: SparkSession = SparkSession.builder.remote(
        str(stack.facts["spark_connect"]["url"])
    ).create()
    yield session
    session.stop()


def write(value: object) -> str:
    """Write a value as the page does."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {write(each)}' for name, each in value.items())}}}"
    if isinstance(value, date):
        return value.isoformat().replace("+00:00", "Z")
    if value is None or isinstance(value, bool) or value in {"", b""}:
        return {None: "null", True: "true", False: "false"}.get(value, '""')
    return value.hex() if isinstance(value, bytes) else str(value)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_value_is_decoded_as_the_page_says(spark: SparkSession, kind: str) -> None:
    columns, examples = {"id": "long!", "value": kind}, EXAMPLES[kind]
    values = [f'{{"id": 1, "value": {text}}}'.encode() for text in examples]

    found = decode_by_spark(spark, columns, values)

    told = [write(each["value"]) if isinstance(each, dict) else each for each in found]
    reasons = ["type_mismatch" if each == DEAD_LETTER else each for each in examples.values()]
    assert dict(zip(examples, told, strict=True)) == dict(zip(examples, reasons, strict=True))
    for value, outcome in zip(values, found, strict=True):
        assert list(decode_by_workers(columns, [value]).values()) in ([], [outcome])


def test_the_page_has_an_example_of_every_type() -> None:
    assert {kind.partition("(")[0].partition("<")[0] for kind in EXAMPLES} == {
        *PRIMITIVES,
        *("decimal", "fixed", "list", "map", "struct"),
    }
