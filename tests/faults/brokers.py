"""Brokers of a test's own: other clusters, and copies of topics on them."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import FRAZIL, FREE_PORTS, REPO, Lab, Stack

from faults.batches import Batches


@contextmanager
def own_broker(home: Path) -> Iterator[Stack]:
    """Run a broker of the test's own, without anything else."""
    jars = os.environ.get("FRAZIL_JARS", str(REPO / ".frazil" / "jars"))
    environment = {**os.environ, **FREE_PORTS, "FRAZIL_HOME": str(home), "FRAZIL_JARS": jars}
    command = [str(FRAZIL), "stack"]
    try:
        subprocess.run([*command, "up", "--only", "kafka"], env=environment, check=True)
        yield Stack.read(home)
    finally:
        subprocess.run([*command, "down"], env=environment, check=True)


def read_from(stack: Stack, batches: Batches, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Point the stream's Kafka connection to another broker."""
    extra = {"bootstrap.servers": stack.bootstrap}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"extra": extra}))
    lab = batches.lab
    return Batches(Lab(stack, lab.folder, lab.stream, lab.document))


def copy_records(
    source: Stack, target: Stack, topic: str, keep: Callable[[Message], bool] = lambda _: True
) -> None:
    """Copy what the target's topic lacks, as a mirror does: all of a record but its offset."""
    consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": "mirror"})
    producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 5})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    for number in sorted(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)
        consumer.assign([TopicPartition(topic, number, low)])
        while low < high:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            low = (message.offset() or 0) + 1
            if keep(message):
                _send(producer, topic, number, message)
    consumer.close()
    assert producer.flush(30) == 0


def _send(producer: Producer, topic: str, number: int, message: Message) -> None:
    producer.produce(
        topic,
        value=message.value(),
        key=message.key(),
        partition=number,
        timestamp=message.timestamp()[1],
        headers=message.headers() or [],
    )
    producer.poll(0)


def create_topic(stack: Stack, topic: str, partitions: int = 2, **config: str) -> None:
    """Create a topic on another cluster."""
    admin = AdminClient({"bootstrap.servers": stack.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(60)
