"""One file for all topics of a pattern, on real parts: a stream, a table and a ledger for each."""

import json
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from conftest import Lab, good_values
from faults.judges import assert_audited
from support.change_events import Message, send, write_json_event
from support.registry_lab import read_table

pytestmark = pytest.mark.stack


def begin(lab: Lab, *topics: str) -> None:
    """Write the stream file, and create the topics with ten records each."""
    lab.write_stream(
        source={"topic_pattern": rf"{lab.stream}\.public\.(?P<t>.+)"},
        table={"name": f"lab.{lab.stream}_{{t}}"},
    )
    for topic in topics:
        create(lab, topic)


def create(lab: Lab, name: str, values: list[bytes | None] | None = None) -> None:
    admin, topic = lab.admin, f"{lab.stream}.public.{name}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    produce(lab, name, values or good_values(10))


def produce(lab: Lab, name: str, values: list[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    for value in values:
        producer.produce(f"{lab.stream}.public.{name}", value=value)
    assert producer.flush(30) == 0


def delete(lab: Lab, name: str) -> None:
    admin, topic = lab.admin, f"{lab.stream}.public.{name}"
    admin.delete_topics([topic], operation_timeout=30)[topic].result(60)


def refresh(lab: Lab) -> int:
    return lab.frazil("streams", "--refresh").code


def read_list(lab: Lab) -> dict[str, dict[str, object]]:
    """Read the list of topics: the topic without its prefix → what is known of it."""
    text = (lab.stack.home / "topics" / f"{lab.stream}.json").read_text()
    found = json.loads(text)["topics"]
    return {topic.removeprefix(f"{lab.stream}.public."): known for topic, known in found.items()}


def forget(lab: Lab) -> None:
    (lab.stack.home / "topics" / f"{lab.stream}.json").unlink()


def count_rows(lab: Lab) -> dict[str, int]:
    """Count the rows of each stream of the file, by the command for all of them."""
    found = lab.frazil("status", lab.stream, "--json").json
    assert isinstance(found, list)
    prefix = f"{lab.stream}__"
    return {each["stream"].removeprefix(prefix): each["rows"] for each in found if "rows" in each}


def run(lab: Lab, name: str) -> int:
    return lab.frazil("run", f"{lab.stream}__{name}").code


@pytest.mark.core
def test_each_topic_of_a_pattern_has_its_table_and_a_broken_one_stops_no_other(lab: Lab) -> None:
    begin(lab, "Orders", "items")
    create(lab, "bad", [b"{"] * 10)
    create(lab, "x__changes")
    before = lab.frazil("status", lab.stream)
    assert before.code == 1
    assert "frazil streams --refresh" in before.err + before.out

    refreshed = lab.frazil("streams", "--refresh")
    codes = {name: run(lab, name) for name in ("bad", "items", "orders")}

    assert refreshed.code == 1
    assert f"topic {lab.stream}.public.x__changes has no stream" in refreshed.err
    assert codes == {"bad": 1, "items": 0, "orders": 0}
    assert count_rows(lab) == {"bad": 0, "items": 10, "orders": 10}
    audited = replace(lab, stream=f"{lab.stream}__orders")
    assert_audited(audited, table=f"lab.{lab.stream}_orders")
    assert lab.frazil("audit", audited.stream).code == 0


TYPES = {"id": "int32", "name": "string"}


def send_events(lab: Lab, name: str, *changes: tuple[str, int, str]) -> None:
    """Send change events of rows: operation, key and name."""
    events = [write_json_event(op, TYPES, {"id": key, "name": text}) for op, key, text in changes]
    send(lab.stack.bootstrap, f"{lab.stream}.public.{name}", events)


def with_other_key(message: Message) -> Message:
    """Write the event of a source whose primary key has got a second column."""
    key = json.loads(message[0] or b"")
    key["schema"]["fields"].append({"type": "int32", "optional": False, "field": "zone"})
    key["payload"]["zone"] = 7
    return json.dumps(key).encode(), message[1]


def test_change_events_of_each_topic_are_merged_and_a_changed_key_stops_only_its_own(
    lab: Lab,
) -> None:
    names = ("customers", "items", "orders")
    lab.write_stream(
        source={"topic_pattern": rf"{lab.stream}\.public\.(?P<t>.+)"},
        value={
            "convert": "json",
            "transform": "flatten_debezium",
            "columns": {"id": "int", "name": "string"},
        },
        table={
            "name": f"lab.{lab.stream}_{{t}}",
            "mode": "upsert",
            "id_columns": "_from_debezium_key_",
        },
        order="kafka",
    )
    admin = lab.admin
    for name in names:
        topic = f"{lab.stream}.public.{name}"
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
        send_events(lab, name, ("c", 1, f"{name} one"), ("c", 2, "two"))
    assert refresh(lab) == 0
    assert [run(lab, name) for name in names] == [0, 0, 0]
    for name in names:
        events = [write_json_event("u", TYPES, {"id": 1, "name": "zoned"})] * 2
        if name == "items":
            topic = f"{lab.stream}.public.items"
            send(lab.stack.bootstrap, topic, [with_other_key(each) for each in events])
        else:
            send_events(lab, name, ("u", 1, f"{name} new"), ("d", 2, ""), ("c", 3, "three"))

    runs = {name: lab.frazil("run", f"{lab.stream}__{name}") for name in names}

    assert {name: each.code for name, each in runs.items()} == dict.fromkeys(names, 0) | {
        "items": 1
    }
    assert "2 of 2 records" in runs["items"].err
    for name in names:
        of_topic = replace(lab, stream=f"{lab.stream}__{name}")
        rows = {row["id"]: row["name"] for row in read_table(of_topic, f"lab.{lab.stream}_{name}")}
        merged = {1: f"{name} new", 3: "three"}
        assert rows == ({1: "items one", 2: "two"} if name == "items" else merged)
        assert lab.frazil("audit", of_topic.stream).code == 0


def test_a_new_topic_is_a_new_stream_after_a_refresh_or_by_its_run(lab: Lab) -> None:
    begin(lab, "a")
    assert refresh(lab) == 0
    create(lab, "b")
    assert lab.frazil("status", f"{lab.stream}__b").code == 1

    by_run = run(lab, "b")
    create(lab, "c")
    by_refresh = refresh(lab)

    assert (by_run, by_refresh) == (0, 0)
    assert count_rows(lab) == {"a": None, "b": 10, "c": None}


def test_a_lost_list_is_rebuilt_the_same_and_a_deleted_topic_keeps_its_stream(lab: Lab) -> None:
    begin(lab, "a", "b", "c")
    assert (refresh(lab), run(lab, "a"), run(lab, "b")) == (0, 0, 0)
    delete(lab, "b")
    delete(lab, "c")
    assert refresh(lab) == 0
    table = f"lab.{lab.stream}_"
    expected = {
        "a": {"table": f"{table}a", "in_kafka": True},
        "b": {"table": f"{table}b", "in_kafka": False},
    }
    assert read_list(lab) == expected

    forget(lab)
    rebuilt = refresh(lab)

    assert (rebuilt, read_list(lab)) == (0, expected)
    assert run(lab, "a") == 0
    gone = lab.frazil("run", f"{lab.stream}__b")
    assert gone.code == 1
    assert "no such topic" in gone.err


def test_a_topic_with_a_running_streams_name_is_refused_and_the_stream_goes_on(lab: Lab) -> None:
    begin(lab, "Orders")
    assert (refresh(lab), run(lab, "orders")) == (0, 0)
    create(lab, "orders")
    produce(lab, "Orders", good_values(5, 10))

    forget(lab)
    refused = lab.frazil("streams", "--refresh")
    goes_on = run(lab, "orders")

    assert (refused.code, goes_on) == (1, 0)
    assert f"topics {lab.stream}.public.Orders and {lab.stream}.public.orders" in refused.err
    assert f"{lab.stream}.public.Orders goes on" in refused.err
    assert count_rows(lab) == {"orders": 15}


def test_without_a_broker_the_list_stays_and_streams_are_known(lab: Lab) -> None:
    begin(lab, "a")
    assert refresh(lab) == 0
    before = read_list(lab)
    down = json.dumps({"extra": {"bootstrap.servers": "127.0.0.1:1"}})

    failed = lab.frazil("streams", "--refresh", AIRFLOW_CONN_KAFKA_DEFAULT=down)

    assert failed.code == 1
    assert "KafkaUnavailable" in failed.err
    assert f"{lab.stream}__a" in failed.out
    assert read_list(lab) == before
