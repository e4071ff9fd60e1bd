"""The key of a state table may be that of its change events, which their schemas tell."""

import json
from base64 import b64encode

import pytest
from conftest import Lab
from support.change_events import (
    event,
    read_samples,
    send,
    write_avro_events,
    write_json_event,
)
from support.registry_lab import RegistryLab, read_table

pytestmark = [pytest.mark.spark, pytest.mark.stack]

COLUMNS = {"id": "int", "name": "string", "doc": "string", "bal": "decimal(10,2)"}
FROM_KEY = "_from_debezium_key_"
TYPES = {"id": "int32", "name": "string"}


def write_stream(lab: Lab, columns: dict[str, str], convert: str = "json") -> None:
    lab.write_stream(
        value={"convert": convert, "transform": "flatten_debezium", "columns": columns},
        table={"name": lab.table, "mode": "upsert", "id_columns": FROM_KEY},
        order="kafka",
        errors={"max_bad_ratio": 1.0},
    )


def count_letters(lab: Lab) -> dict[str, int]:
    answer = lab.frazil("dead-letters", lab.stream, "--json").json
    assert isinstance(answer, dict)
    return {group["reason"]: group["open"] for group in answer["groups"]}


def test_the_schema_in_the_keys_of_real_messages_names_the_key(lab: Lab) -> None:
    lab.create_topic(partitions=1)
    write_stream(lab, COLUMNS)
    waiting = lab.frazil("run", lab.stream)
    messages = read_samples("customers", "dbzs.public.cust")
    kept = [
        each
        for each in messages
        if json.loads(each[1] or b"{}").get("payload", {}).get("op") != "t"
    ]
    send(lab.stack.bootstrap, lab.topic, kept)

    lab.drain()

    assert waiting.code == 1
    assert "has no record yet" in waiting.err
    assert {row["id"] for row in read_table(lab)} == {1, 3}
    where = lab.frazil("where", lab.stream, "--key", "id=1")
    assert where.code == 0, where.err
    erased = lab.frazil(
        *("erase", lab.stream, "--key", "id=1", "--by", "a", "--reason", "b", "--no-dry-run")
    )
    assert erased.code == 0, erased.err
    lab.drain()
    assert {row["id"] for row in read_table(lab)} == {3}
    assert lab.frazil("audit", lab.stream).code == 0


def test_keys_without_a_schema_or_without_a_column_are_refused(lab: Lab) -> None:
    lab.create_topic(partitions=1)
    write_stream(lab, COLUMNS)
    send(lab.stack.bootstrap, lab.topic, [event("c", '{"id": 1}')])

    refused = lab.frazil("run", lab.stream)

    assert refused.code == 1
    assert f"the first key of {lab.topic}:0 has no schema" in refused.err
    assert "key.converter.schemas.enable=true" in refused.err


@pytest.mark.core
def test_the_registered_schema_of_the_keys_names_the_key(registry: RegistryLab) -> None:
    lab = registry.lab
    write = write_avro_events(lambda text, part: registry.register(text, part=part))
    write_stream(lab, {"name": "string"}, "by_schema_id")
    send(lab.stack.bootstrap, lab.topic, [write("c", TYPES, {"id": 1, "name": "one"})])
    without = lab.frazil("run", lab.stream)
    write_stream(lab, {"id": "int", "name": "string"}, "by_schema_id")
    changes = [("u", {"id": 1, "name": "new"}), ("c", {"id": 2, "name": "two"}), ("d", {"id": 2})]
    send(lab.stack.bootstrap, lab.topic, [write(op, TYPES, row) for op, row in changes])
    lab.drain()
    value = write("u", TYPES, {"id": 1, "name": "other"})[1]
    send(lab.stack.bootstrap, lab.topic, [(b'{"id": 1, "zone": 2}', value), (None, value)])
    lab.drain()

    assert without.code == 1
    assert (
        "the key of its change events has id, for which value.columns has no column" in without.err
    )
    assert [(row["id"], row["name"]) for row in read_table(lab)] == [(1, "new")]
    assert count_letters(lab) == {"other_key": 1, "key_missing": 1}
    assert lab.frazil("audit", lab.stream, "--values").code == 0


@pytest.mark.parametrize("convert", ["json", "by_schema_id"])
def test_a_key_of_bytes_is_a_text_with_their_base64(registry: RegistryLab, convert: str) -> None:
    lab, types = registry.lab, {"id": "bytes", "name": "string"}
    of_avro = write_avro_events(lambda text, part: registry.register(text, part=part))
    write = of_avro if convert == "by_schema_id" else write_json_event
    keys = [b64encode(each).decode() for each in (b"\xff\x00", bytes(range(256)), b"gone")]
    sent = keys if convert == "json" else [b"\xff\x00", bytes(range(256)), b"gone"]
    write_stream(lab, {"id": "string", "name": "string"}, convert)
    events = [write("c", types, {"id": key, "name": "old"}) for key in sent]
    events += [
        write("u", types, {"id": sent[0], "name": "new"}),
        write("d", types, {"id": sent[2]}),
    ]
    send(lab.stack.bootstrap, lab.topic, events)

    lab.drain()

    assert {row["id"]: row["name"] for row in read_table(lab)} == {keys[0]: "new", keys[1]: "old"}
    where = lab.frazil("where", lab.stream, "--key", f"id={keys[1]}")
    assert where.code == 0, where.err
    erase = ("erase", lab.stream, "--key", f"id={keys[0]}", "--by", "a", "--reason", "b")
    assert lab.frazil(*erase, "--no-dry-run").code == 0
    lab.drain()
    assert {row["id"] for row in read_table(lab)} == {keys[1]}
    assert lab.frazil("audit", lab.stream).code == 0
