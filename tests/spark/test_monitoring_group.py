"""A consumer group shows a stream's progress; it stops nothing and leaves other groups alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from conftest import Lab, good_values

from frazil.kafka.cluster import KafkaLog

pytestmark = pytest.mark.stack


def set_offsets(lab: Lab, group: str, *parts: TopicPartition) -> None:
    """Commit offsets as another client does."""
    admin = lab.admin  # an answer needs its client
    wanted = [ConsumerGroupTopicPartitions(group, list(parts))]
    admin.alter_consumer_group_offsets(wanted)[group].result(30)


def name_group(lab: Lab, group: str) -> None:
    lab.write_stream(source={"topic": lab.topic, "monitoring_group": group})


def read_lag(lab: Lab, group: str) -> dict[int, int]:
    """Read a group's lag as lag monitors do: end offsets less what the Admin API answers."""
    admin = lab.admin
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    consumer = Consumer({"bootstrap.servers": lab.stack.bootstrap, "group.id": "monitor"})
    try:
        return {
            part.partition: consumer.get_watermark_offsets(part, 10)[1] - part.offset
            for part in listed[group].result(10).topic_partitions
        }
    finally:
        consumer.close()


def run(lab: Lab) -> str:
    """Run a batch that publishes; return what it warns of."""
    answer = lab.frazil("run", lab.stream, "--json")
    assert answer.code == 0, answer.out + answer.err
    assert answer.json["outcome"] == "PUBLISHED"
    return str(answer.json["warning"])


def read_group_status(lab: Lab) -> dict[str, str | None]:
    status = lab.frazil("status", lab.stream, "--json").json
    return status[0]["monitoring_group"]


@contextmanager
def member(lab: Lab, group: str) -> Iterator[None]:
    """Join a group as an application does."""
    consumer = Consumer({"bootstrap.servers": lab.stack.bootstrap, "group.id": group})
    consumer.subscribe([lab.topic])
    while not consumer.assignment():
        consumer.poll(0.2)
    try:
        yield
    finally:
        consumer.close()


def test_the_first_group_of_a_cluster_waits_for_its_coordinator(lab: Lab) -> None:
    admin, internal = lab.admin, "__consumer_offsets"
    admin.describe_consumer_groups([lab.stream])[lab.stream].exception(30)  # creates the topic
    admin.delete_topics([internal])[internal].result(30)

    assert KafkaLog({"bootstrap.servers": lab.stack.bootstrap}).fetch_group(lab.stream).members == 0


def test_lag_monitors_see_what_the_table_lacks(lab: Lab) -> None:
    group = f"frazil-{lab.stream}"
    name_group(lab, group)
    lab.create_topic()
    lab.produce(good_values(10))

    assert run(lab) == "None"
    lab.produce(good_values(6))

    assert read_lag(lab, group) == {0: 3, 1: 3}
    assert read_group_status(lab) == {"group": group, "problem": None}
    assert run(lab) == "None"
    assert read_lag(lab, group) == {0: 0, 1: 0}


def test_c9_offsets_of_the_group_decide_nothing(lab: Lab) -> None:
    group = f"frazil-{lab.stream}"
    name_group(lab, group)
    lab.create_topic()
    lab.produce(good_values(10))
    run(lab)
    mark = f"frazil:{lab.stream}"
    set_offsets(lab, group, *(TopicPartition(lab.topic, p, 0, mark) for p in (0, 1)))

    assert read_group_status(lab)["problem"] == "it shows other offsets until the next batch"
    assert "next_offsets" in lab.frazil("run", lab.stream, "--json").out
    assert lab.rows == 10


def test_a_group_of_something_else_is_left_alone_and_batches_go_on(lab: Lab) -> None:
    group = f"app-{lab.stream}"
    name_group(lab, group)
    lab.create_topic()
    lab.produce(good_values(4))
    with member(lab, group):
        assert "it has 1 active members" in run(lab)

    set_offsets(lab, group, TopicPartition(lab.topic, 0, 1))
    lab.produce(good_values(4))

    assert "another client has committed offsets" in run(lab)
    assert read_lag(lab, group) == {0: 3}
    assert "another client" in str(read_group_status(lab)["problem"])
    assert lab.rows == 8


def test_two_streams_do_not_share_a_group(lab: Lab) -> None:
    group, other = f"frazil-{lab.stream}", replace(lab, stream=f"{lab.stream}_2")
    name_group(lab, group)
    lab.create_topic()
    lab.produce(good_values(4))
    run(lab)
    other.document["stream"] = other.stream
    other.write_stream(
        source={"topic": lab.topic, "monitoring_group": group}, table={"name": other.table}
    )

    assert f"stream {lab.stream} commits its offsets" in run(other)
