"""Change events of tables with different columns: each has the columns of its registered schema."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from conftest import Lab
from support.change_events import Fields, Row, send, write_avro_event
from support.forked import Run
from support.registry_lab import RegistryLab, read_table

pytestmark = [pytest.mark.spark, pytest.mark.stack]

CONNECT, TIME = "org.apache.kafka.connect.data", "io.debezium.time"


def typed(kind: str, connect: str, **more: object) -> list[object]:
    """Write the type of a column that may be null, as Kafka Connect's Avro converters do."""
    return ["null", {"type": kind, "connect.version": 1, "connect.name": connect, **more}]


DIGITS: dict[str, object] = {
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
    "precision": 10,
    "scale": 2,
    "logicalType": "decimal",
}
BALANCE = typed("bytes", f"{CONNECT}.Decimal", **DIGITS)
PRICE: list[object] = [
    "null",
    {
        "type": "record",
        "name": "VariableScaleDecimal",
        "namespace": "io.debezium.data",
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
        "connect.name": "io.debezium.data.VariableScaleDecimal",
    },
]
TEXT = ["null", "string"]
CUSTOMERS = {
    "name": TEXT,
    "balance": BALANCE,
    "born": typed("int", f"{TIME}.Date"),
    "seen": typed("long", f"{TIME}.MicroTimestamp"),
    "tags": ["null", {"type": "array", "items": TEXT}],
}
ITEMS = {"price": PRICE, "doc": TEXT}
ORDERS = {
    "placed": typed("string", f"{TIME}.ZonedTimestamp"),
    "at": typed("long", f"{TIME}.MicroTime"),
    "note": typed("string", "io.debezium.data.Json"),
}
UUID = {"type": "string", "connect.name": "io.debezium.data.Uuid"}
KEYS: Mapping[str, Fields] = {
    "customers": {"id": "int"},
    "items": {"shop": "string", "nr": "long"},
    "orders": {"uid": UUID},
}
IDLE = "idle"
"""A table that has not changed: there is no event of it, and no schema."""
ORDER = "11111111-2222-3333-4444-555555555555"
REST = {"_kafka", "_source"}


@dataclass(frozen=True)
class Database:
    """Tables of one database, each with a topic and subjects of its own."""

    registry: RegistryLab

    @property
    def lab(self) -> Lab:
        return self.registry.lab

    def topic(self, table: str) -> str:
        return f"{self.lab.stream}.public.{table}"

    def change(self, table: str, op: str, columns: Fields, **row: object) -> None:
        """Send the event of a change; a delete needs the key only."""

        def register(text: str, part: str) -> int:
            subject = f"{self.topic(table)}-{part}"
            return int(self.registry.client.register_schema(subject, Schema(text, "AVRO")))

        event = write_avro_event(register, op, KEYS[table], columns, row)
        send(self.lab.stack.bootstrap, self.topic(table), [event])

    def run(self, table: str, *command: str) -> Run:
        stream = f"{self.lab.stream}__{table}"
        found = self.lab.frazil(*(command or ("run",)), stream)
        assert found.code == 0, found.out + found.err
        return found

    def read(self, table: str) -> list[Row]:
        of_table = replace(self.lab, stream=f"{self.lab.stream}__{table}")
        rows = read_table(of_table, f"lab.{self.lab.stream}_{table}")
        return [{n: v for n, v in row.items() if n not in REST} for row in rows]


@pytest.fixture
def database(registry: RegistryLab) -> Database:
    """Capture three tables by one stream file without columns."""
    made = Database(registry)
    made.lab.write_stream(
        source={"topic_pattern": rf"{made.lab.stream}\.public\.(?P<t>.+)"},
        value={"convert": "by_schema_id", "transform": "flatten_debezium"},
        table={
            "name": f"lab.{made.lab.stream}_{{t}}",
            "mode": "upsert",
            "id_columns": "_from_debezium_key_",
        },
        order="kafka",
        changes={"keep_days": 7},
    )
    admin = made.lab.admin
    for topic in map(made.topic, (*KEYS, IDLE)):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    return made


@pytest.mark.core
def test_tables_with_different_columns_are_one_file_without_columns(database: Database) -> None:
    ada = {"name": "Ada", "balance": b"\x04\xd2", "born": 20454, "seen": 1, "tags": ["a", None]}
    database.change("customers", "c", CUSTOMERS, id=1, **ada)
    database.change("customers", "c", CUSTOMERS, id=2, **ada)
    price = {"scale": 3, "value": b"\x04\xd2"}
    database.change("items", "c", ITEMS, shop="north", nr=1, price=price, doc="large")
    database.change(
        "orders", "c", ORDERS, uid=ORDER, placed="2026-01-01T00:00:00Z", at=7, note="{}"
    )
    assert database.lab.frazil("streams", "--refresh").code == 0
    for table in KEYS:
        database.run(table)
    unsent = "__debezium_unavailable_value"
    database.change("items", "u", ITEMS, shop="north", nr=1, price=None, doc=unsent)
    database.change("orders", "d", ORDERS, uid=ORDER)
    database.change("customers", "d", CUSTOMERS, id=2)
    more = {**CUSTOMERS, "city": TEXT}
    database.change("customers", "u", more, id=1, **{**ada, "name": "Eve", "city": "Rome"})

    for table in KEYS:
        database.run(table)

    assert database.read("customers") == [
        {
            "id": 1,
            "name": "Eve",
            "balance": Decimal("12.34"),
            "born": date(2026, 1, 1),
            "seen": datetime(1970, 1, 1, microsecond=1),  # noqa: DTZ001 - no zone
            "tags": ["a", None],
            "city": "Rome",
        }
    ]
    assert database.read("items") == [{"shop": "north", "nr": 1, "price": None, "doc": "large"}]
    assert database.read("orders") == []
    for table in KEYS:
        database.run(table, "audit", "--values")
    require_healthy(database)


def require_healthy(database: Database) -> None:
    """Require that no merge is said to halt, and that maintenance passes over an idle table."""
    for table in KEYS:
        [status] = read_list(database.run(table, "status", "--json"))
        state = status["state_table"]
        assert (state["problem"], state["waiting_batches"]) == (None, 0)
        assert status["freshness"]["level"] == "ok", status["freshness"]
    [card] = read_list(
        database.lab.frazil("readiness", f"{database.lab.stream}__customers", "--json")
    )
    [line] = [line for line in card["lines"] if line["name"] == "state table"]
    assert line["mark"] == "ok", line
    expired = database.run(IDLE, "maintain", "--only", "expire_rows", "--no-dry-run", "--json").json
    assert isinstance(expired, dict)
    assert (expired["expire_rows"]["trimmed"], expired["table"]["exists"]) == (0, False)


def read_list(run: Run) -> list[dict[str, Any]]:
    """Return the objects that a command wrote as JSON."""
    assert isinstance(run.json, list)
    return run.json


def test_changes_follow_the_source_until_it_changes_a_type(registry: RegistryLab) -> None:
    lab = registry.lab
    value = {"convert": "by_schema_id", "transform": "flatten_debezium", "rest": "others"}

    def change(columns: Fields, **row: object) -> None:
        event = write_avro_event(
            lambda text, part: registry.register(text, part=part), "c", {"id": "int"}, columns, row
        )
        send(lab.stack.bootstrap, lab.topic, [event])

    lab.write_stream(value=value, table={"name": lab.table})
    change({"n": "int"}, id=1, n=1)
    lab.drain()
    change({"n": "long", "_op": TEXT, "city": TEXT}, id=2, n=2**40, _op="x", city="Rome")
    lab.drain()
    change({"n": typed("long", f"{TIME}.MicroTimestamp")}, id=3, n=5)

    stopped = lab.frazil("run", lab.stream)
    lab.write_stream(
        value={**value, "columns": {"id": "int", "n": "timestamp", "city": "string"}},
        schema={"other": "auto"},
    )
    lab.drain()
    lab.write_stream(value=value)
    change({"n": typed("long", f"{TIME}.MicroTimestamp")}, id=4, n=None)
    lab.drain()

    assert stopped.code == 1
    assert "n is timestamp, and its column long" in stopped.err
    rows = {row["id"]: row for row in read_table(lab)}
    [aside] = {*rows[1]} - {"id", "n", "city", "others", "_op", "_unavailable", *REST}
    assert [rows[key][aside] for key in (1, 2, 3, 4)] == [1, 2**40, None, None]
    assert [rows[key]["n"] for key in (1, 2, 4)] == [None] * 3
    assert rows[3]["n"] == datetime(1970, 1, 1, microsecond=5)  # noqa: DTZ001 - no zone
    assert (rows[2]["city"], rows[2]["others"], rows[2]["_op"]) == ("Rome", '{"_op":"x"}', "c")
    assert lab.frazil("audit", lab.stream).code == 0
