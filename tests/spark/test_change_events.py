"""Debezium's real messages through Kafka and `frazil run` into a table of changes."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from conftest import Lab
from faults.judges import assert_exactly_once, count_open_letters
from pyiceberg.catalog import load_catalog
from support.change_events import Message, event, read_samples, send

pytestmark = pytest.mark.stack
CUSTOMERS = {
    "id": "int!",
    "name": "string",
    "doc": "string",
    "bal": "decimal(10,2)",
    "d": "date",
    "ts": "timestamp",
    "tz": "timestamptz",
    "u": "uuid",
    "b": "boolean",
    "arr": "list<int>",
    "ba": "binary",
}
ORDERS = {
    "id": "long!",
    "customer": "string",
    "note": "string",
    "tags": "string",
    "created": "timestamptz",
}
POSITION = {
    "ts_ms": 1795206756766,
    "lsn": 31373928,
    "tx_id": "850",
    "db": "shop",
    "schema": "public",
    "table": "cust",
    "snapshot": "false",
}
Row = dict[str, Any]


def begin(lab: Lab, columns: dict[str, str], messages: list[Message], **value: object) -> None:
    """Write the stream file of a table of changes, and send messages to its topic."""
    write_stream(lab, columns, **value)
    lab.create_topic(partitions=1)
    send(lab.stack.bootstrap, lab.topic, messages)


def write_stream(lab: Lab, columns: dict[str, str], **value: object) -> None:
    transform = {"convert": "json", "transform": "flatten_debezium", "columns": columns}
    lab.write_stream(
        value={**transform, **value}, table={"name": lab.table}, errors={"max_bad_ratio": 1.0}
    )


def read_rows(lab: Lab) -> list[Row]:
    """Read the table in the order of offsets."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    rows: list[Row] = catalog.load_table(lab.table).scan().to_arrow().to_pylist()
    catalog.close()
    return sorted(rows, key=lambda row: row["_kafka"]["offset"])


def read_counts(lab: Lab) -> tuple[int, int, int, int, object]:
    """Read how many records the last batch read, wrote, quarantined and skipped, and which."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    snapshot = catalog.load_table(lab.table).current_snapshot()
    catalog.close()
    assert snapshot is not None
    assert snapshot.summary is not None
    summary = snapshot.summary.additional_properties
    names = ("read", "written", "quarantined", "skipped")
    read, written, quarantined, skipped = (int(summary[f"frazil.rows-{name}"]) for name in names)
    return read, written, quarantined, skipped, json.loads(summary.get("frazil.skipped", "{}"))


def test_real_messages_with_schemas_become_rows_once_a_truncate_is_waived(lab: Lab) -> None:
    begin(lab, CUSTOMERS, read_samples("customers", "dbzs.public.cust"))
    blocked = lab.frazil("run", lab.stream)
    assert blocked.code == 1
    assert "1 event says that the source table was truncated" in blocked.out + blocked.err
    batch = blocked.err.partition("--batch ")[2].partition(" ")[0]
    decision = ("--batch", batch, "--by", "ann", "--reason", "x", "--no-dry-run")
    waived = lab.frazil("waive", lab.stream, *decision)
    assert waived.code == 0, waived.err

    lab.drain()

    rows = read_rows(lab)
    ops = ["r", "u", "c", "u", "d", "r", "r"]
    assert [(row["id"], row["_op"]) for row in rows] == list(
        zip([1, 1, 2, 2, 2, 1, 3], ops, strict=True)
    )
    first, toast, _, _, deleted = rows[:5]
    assert (first["bal"], first["d"]) == (Decimal("1.10"), date(2026, 1, 1))
    assert first["ts"].isoformat() == "2026-01-01T01:02:03.456789"
    assert first["tz"] == datetime(2025, 12, 31, 23, 2, 3, tzinfo=UTC)
    assert (first["arr"], first["ba"]) == ([1, 2], b"\xde\xad\xbe\xef")
    assert (toast["doc"], toast["_unavailable"], first["_unavailable"]) == (None, ["doc"], [])
    assert toast["_source"] == POSITION
    assert {deleted[name] for name in CUSTOMERS if name != "id"} == {None}
    assert read_counts(lab) == (9, 7, 1, 1, {"tombstone": 1})
    assert count_open_letters(lab) == {"truncate": 1}
    assert_exactly_once(lab, "--values")


@pytest.mark.core
def test_real_messages_without_schemas_and_columns_that_the_source_got_later(lab: Lab) -> None:
    messages = read_samples("orders", "dbz.public.orders")
    marker = read_samples("orders", "dbz.transaction")[0]
    begin(lab, ORDERS, [*messages, marker, event("m", key=None)])

    lab.drain()

    rows = read_rows(lab)
    assert [row["id"] for row in rows if row["_op"] == "d"] == [2, 3, 4, 6]
    assert {row["customer"] for row in rows if row["_op"] == "d"} == {None}
    assert rows[2]["customer"] == "čen"
    skips = {"tombstone": 4, "message": 1, "transaction": 1}
    assert read_counts(lab) == (23, 17, 0, 6, skips)
    assert "region" in lab.frazil("status", lab.stream).out
    write_stream(lab, {**ORDERS, "region": "string", "client": "string"})
    send(lab.stack.bootstrap, lab.topic, [event("c", '{"id": 8, "region": "asia"}')])
    lab.drain()
    replayed = lab.frazil("replay", lab.stream, "--offsets", f"{lab.topic}:0:0-23", "--no-dry-run")
    assert replayed.code == 0, replayed.out + replayed.err
    found = {(row["region"], row["client"]) for row in read_rows(lab)}
    kept = {(None, None), ("us", None), ("eu", None), ("eu", "gus2"), ("eu", "gus3")}
    assert found == kept | {("asia", None)}
    assert_exactly_once(lab, "--values")


def test_a_waived_truncate_leaves_the_rows_of_a_state_table(lab: Lab) -> None:
    columns = {"id": "long!", "name": "string"}
    lab.write_stream(
        value={"convert": "json", "transform": "flatten_debezium", "columns": columns},
        table={"name": lab.table, "mode": "upsert", "id_columns": ["id"]},
        order="kafka",
    )
    lab.create_topic(partitions=1)
    first = [event("c", f'{{"id": {n}, "name": "one"}}', f'{{"id": {n}}}') for n in (1, 2)]
    send(lab.stack.bootstrap, lab.topic, first)
    lab.drain()
    third = event("c", '{"id": 3, "name": "later"}', '{"id": 3}')
    send(lab.stack.bootstrap, lab.topic, [event("t", key=None), third])

    blocked = lab.frazil("run", lab.stream)
    before = {row["id"] for row in read_rows(lab)}
    batch = blocked.err.partition("--batch ")[2].partition(" ")[0]
    decision = ("--batch", batch, "--by", "ann", "--reason", "x", "--no-dry-run")
    waived = lab.frazil("waive", lab.stream, *decision)
    lab.drain()
    audited = lab.frazil("audit", lab.stream)

    assert (blocked.code, waived.code, audited.code) == (1, 0, 0), waived.err + audited.err
    assert "1 event says that the source table was truncated" in blocked.err
    assert f"{lab.table} would keep the truncated rows" in blocked.err
    assert (before, {row["id"] for row in read_rows(lab)}) == ({1, 2}, {1, 2, 3})
    assert count_open_letters(lab) == {"truncate": 1}
    assert "4 records delivered by Kafka in 2 batches; 3 rows, 1 open dead letter" in audited.out


def test_what_cannot_be_read_is_a_dead_letter_with_its_reason(lab: Lab) -> None:
    columns = {"id": "long!", "name": "string", "amount": "decimal(9,2)", "at": "timestamp"}
    good = event("c", '{"id": 1, "amount": 12.50, "at": "2026-01-01T00:00:00"}')
    bad: list[Message] = [
        event("c", '{"id": 1, "amount": "1234"}'),
        event("c", '{"id": 1, "at": 1767229323456789}'),
        (b"k", b'{"id": 1, "name": "no envelope"}'),
        (b"k", b'{"op": {"a": 1}, "source": {}}'),
        (b"k", b'{"op": "x", "source": {}}'),
        event("u", "null"),
        (b"k", b'{"schema": {"x": 5}, "payload": ' + (good[1] or b"") + b"}"),
        event("d", key=None),
        event("d", key='"text"'),
        event("d", key='{"other": 1}'),
        event("c", '{"name": "x"}'),
        event("c", '{"id": "x"}'),
        event("c", '{"id": 1, "name": "\\ud800"}'),
        (b"k", b"{"),
        (b"k", b"[1]"),
        (b"k", (good[1] or b"") + b"{}"),
        (None, None),
    ]
    begin(lab, columns, [good, *bad])

    lab.drain()

    assert [row["amount"] for row in read_rows(lab)] == [Decimal("12.50")]
    reasons = {
        "unknown_encoding": 2,
        "not_an_envelope": 5,
        "key_missing": 2,
        "required_missing": 2,
        "type_mismatch": 1,
        "invalid_utf8": 1,
        "malformed_json": 2,
        "not_an_object": 1,
        "null_value": 1,
    }
    assert count_open_letters(lab) == reasons
    write_stream(lab, columns, decimals="string")
    redriven = lab.frazil("replay-dead-letters", lab.stream, "--no-dry-run")
    assert redriven.code == 0, redriven.out + redriven.err
    amounts = [row["amount"] for row in read_rows(lab)]
    assert amounts == [Decimal("12.50"), Decimal("1234.00")]
    assert count_open_letters(lab) == {**reasons, "unknown_encoding": 1}
    assert_exactly_once(lab, "--values")


def test_the_rest_keeps_what_no_column_names_until_a_replay_moves_it(lab: Lab) -> None:
    columns = {"id": "long!", "kept": 'string from "_frazil_x"'}
    value = {"convert": "json", "columns": columns, "rest": "others"}
    lab.write_stream(value=value, table={"name": lab.table}, errors={"max_bad_ratio": 1.0})
    lab.create_topic(partitions=1)
    digits = "12345678901234567.12345678901234567890"
    whole = b'{"id":2,"n":%s,"t":"1.10"}' % digits.encode()
    sent = [b'{"id":1,"_frazil_x":"k"}', whole, b"{", b'{"n":1}']
    send(lab.stack.bootstrap, lab.topic, [(None, each) for each in sent])
    lab.drain()

    assert [row["others"] for row in read_rows(lab)] == [None, f'{{"n":{digits},"t":"1.10"}}']
    assert count_open_letters(lab) == {"malformed_json": 1, "required_missing": 1}

    lab.write_stream(value={**value, "columns": {**columns, "n": "decimal(38,20)"}})
    send(lab.stack.bootstrap, lab.topic, [(None, b'{"id":3,"n":0.5}')])
    lab.drain()
    replayed = lab.frazil("replay", lab.stream, "--offsets", f"{lab.topic}:0:0-4", "--no-dry-run")

    assert replayed.code == 0, replayed.out + replayed.err
    found = [(row["n"], row["others"]) for row in read_rows(lab)]
    assert found == [(None, None), (Decimal(digits), '{"t":"1.10"}'), (Decimal("0.5"), None)]
    assert [row["kept"] for row in read_rows(lab)] == ["k", None, None]
    assert_exactly_once(lab, "--values")
