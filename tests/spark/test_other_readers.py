"""What Frazil writes, read by Trino, beside Spark, PyIceberg and DuckDB; only where Trino is."""

import random
import secrets
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from conftest import Stack
from pyspark.sql import SparkSession
from support.state_lake import BIRTH, Change, StackStateLake, by_sequence, make_state_lake
from support.table_readers import read_by_each
from support.trino import HAS_TRINO, MISSING

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not HAS_TRINO, reason=MISSING)]
COLUMNS = {
    "id": "long!",
    "op": "string",
    "at": "long!",
    "name": "string",
    "amount": "decimal(12,2)",
    "ratio": "double",
    "day": "date",
    "seen": "timestamptz",
    "local": "timestamp",
    "is_open": "boolean",
}
READ = [name for name in COLUMNS if name != "op"]


class TypedLake(StackStateLake):
    """A state table with a column of each kind of value that engines write in their own way."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        """Make the row of a change, with values that follow from its sequence."""
        at = change.at
        has_values = at % 7 != 0
        values = {
            "amount": Decimal(at * 125).scaleb(-2),
            "ratio": at / 8,
            "day": date(2026, 1, 1) + timedelta(days=at),
            "seen": BIRTH + timedelta(seconds=at, microseconds=at),
            "local": datetime(2026, 1, 1) + timedelta(hours=at, microseconds=at),  # noqa: DTZ001
            "is_open": at % 2 == 0,
        }
        return {**StackStateLake.make_row(change, place), **(values if has_values else {})}


@pytest.fixture
def merged(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TypedLake]:
    """Merge changes and deletes of the same keys several times, which leaves position deletes."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    lake = make_state_lake(
        TypedLake, tmp_path, f"t{secrets.token_hex(4)}", value={"columns": COLUMNS}
    )
    dice = random.Random(4)
    for merge in range(4):
        for number in range(2000 if merge == 0 else 300):
            key = number if merge == 0 else dice.randrange(2500)
            clock = sum(map(len, lake.log))
            operation = "c" if merge == 0 else dice.choice("uuud")
            lake.produce(key % 2, Change(key, operation, clock, f"{key}/{clock}"))
        lake.ingest_all()
        lake.merge()
    yield lake
    lake.store.catalog.close()


def test_each_engine_reads_the_same_state(
    merged: TypedLake, spark: SparkSession, tmp_path: Path
) -> None:
    expected = merged.expected(by_sequence)
    table = merged.store.load(merged.state_name)
    files = table.inspect.delete_files().to_pylist()
    assert table.metadata.format_version == 2
    assert {each["content"] for each in files} == {1}, "position deletes alone"
    assert merged.rows() == expected

    found = read_by_each(tmp_path, spark, merged.state_name, table, READ)

    hidden = sum(each["record_count"] for each in files)
    print(f"{len(files)} delete files hide {hidden} rows;", found)  # noqa: T201
    assert {"PyIceberg", "Spark", "Trino"} <= found.keys()
    assert len({*found.values()}) == 1, found
    assert found["Trino"][0] == len(expected)
