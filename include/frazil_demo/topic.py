"""Sending the flights to Kafka, from where an earlier send stopped."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.error import KafkaError

from frazil.kafka_log import KafkaLog
from frazil_demo.events import PARTITIONS, Event, iterate_events

TOPIC = "flights"
_PROGRESS_EVERY = 100_000


@dataclass(frozen=True)
class Sent:
    """How many records were sent now, were there before, and are malformed among all."""

    now: int
    before: int
    malformed: int


def ensure_topic(config: Mapping[str, str]) -> None:
    """Create the topic with unlimited retention: its records carry event times of 2013."""
    settings = {"retention.ms": "-1", "retention.bytes": "-1"}
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1, config=settings)
    client = AdminClient(dict(config))
    try:
        client.create_topics([topic])[TOPIC].result(15)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def send_flights(config: Mapping[str, str], count: int, report: Callable[[str], None]) -> Sent:
    """Send what the topic does not hold yet of so many flights; their order never changes."""
    facts = KafkaLog(config).fetch_topic(TOPIC, "read_uncommitted")
    there = [partition.end for partition in facts.partitions]
    producer_settings: dict[str, Any] = {
        **config,
        "log_level": 3,  # a broker that has just begun refuses once or twice, and that is no news
        "enable.idempotence": True,
        "linger.ms": 50,
        "compression.type": "lz4",
    }
    producer = Producer(producer_settings)
    position = [0] * PARTITIONS
    sent = malformed = 0
    for event in iterate_events(count):
        malformed += not _is_flight(event)
        position[event.partition] += 1
        if position[event.partition] <= there[event.partition]:
            continue
        _produce(producer, event)
        sent += 1
        if sent % _PROGRESS_EVERY == 0:
            report(f"sent {sent:,} records")
    producer.flush(60)
    return Sent(now=sent, before=sum(there), malformed=malformed)


def _is_flight(event: Event) -> bool:
    return event.value is not None and event.value.startswith(b'{"flight_id":"')


def _produce(producer: Producer, event: Event) -> None:
    """Queue one record, waiting while the queue is full."""
    while True:
        try:
            producer.produce(
                TOPIC,
                value=event.value,
                key=event.key,
                partition=event.partition,
                timestamp=event.timestamp_ms,
                headers=list(event.headers),
            )
        except BufferError:
            producer.poll(0.2)
            time.sleep(0.01)
        else:
            producer.poll(0)
            return
