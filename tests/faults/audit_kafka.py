"""What Kafka delivers of a topic, for the independent auditor."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from faults.audit_values import SILENCE_SECONDS, Offsets, PartitionLog


def read_kafka_topic(
    bootstrap: str, topic: str, isolation: str
) -> dict[str, dict[int, PartitionLog]]:
    """Read which offsets of a topic Kafka delivers under an isolation level.

    Raises:
        KafkaException: the broker refused.
        TimeoutError: nothing arrived for 30 seconds before the end was reached.
    """
    logs = read_logs(bootstrap, topic, isolation)
    is_compacted = bool(logs) and read_is_compacted(bootstrap, topic)
    return {topic: {n: log._replace(is_compacted=is_compacted) for n, log in logs.items()}}


def read_logs(bootstrap: str, topic: str, isolation: str) -> dict[int, PartitionLog]:
    """Read a topic's partitions from their earliest to their end; none where it does not exist."""
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": "frazil-auditor",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": isolation,
    }
    consumer = Consumer(settings)
    try:
        found = consumer.list_topics(topic, timeout=SILENCE_SECONDS).topics[topic]
        limits = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), SILENCE_SECONDS)
            for number in (() if found.error else found.partitions)
        }
        offsets = consume_offsets(consumer, topic, limits)
    finally:
        consumer.close()
    return {n: PartitionLog(low, high, offsets[n]) for n, (low, high) in limits.items()}


def consume_offsets(
    consumer: Consumer, topic: str, limits: Mapping[int, tuple[int, int]]
) -> dict[int, Offsets]:
    """Consume partitions between their limits; only the limit or the broker's end ends one."""
    consumer.assign([TopicPartition(topic, number, low) for number, (low, _) in limits.items()])
    pending = {number for number, (low, high) in limits.items() if low < high}
    collected: dict[int, list[int]] = {number: [] for number in limits}
    heard_at = time.monotonic()
    while pending:
        messages = consumer.consume(50_000, timeout=0.5)
        heard_at = time.monotonic() if messages else heard_at
        if time.monotonic() - heard_at > SILENCE_SECONDS:
            raise TimeoutError(f"Kafka sent nothing of {topic} {pending} for {SILENCE_SECONDS} s")
        for message in messages:
            error, number, offset = message.error(), message.partition(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - public in its documentation
                raise KafkaException(error)
            if number is None or offset is None:
                continue
            if error is None and offset < limits[number][1]:
                collected[number].append(offset)
            if error is not None or offset + 1 >= limits[number][1]:
                pending.discard(number)
    return {number: np.array(offsets, np.int64) for number, offsets in collected.items()}


def read_is_compacted(bootstrap: str, topic: str) -> bool:
    """Return whether a topic is compacted; a broker that does not tell keeps everything."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive its answer
    try:
        described = admin.describe_configs([resource])[resource].result(timeout=10)
        return "compact" in str(described["cleanup.policy"].value)
    except (KafkaException, KeyError, TimeoutError):
        return False
