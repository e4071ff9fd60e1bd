"""Sending to Kafka: the flights from where an earlier send stopped, or any other records."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.error import KafkaError

from frazil.errors import StackError
from frazil.kafka.cluster import KafkaLog
from frazil_demo.events import PARTITIONS, Event, iterate_events

TOPIC = "flights"
UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The flights' records carry event times of 2013: Kafka would delete them at once."""

_PROGRESS_EVERY = 100_000
_FLUSH_SECONDS = 60
_AGAIN = "`frazil stack status` shows the broker; the same command again sends what is missing"


@dataclass(frozen=True)
class Sent:
    """How many records were sent now, were there before, and are malformed among all."""

    now: int
    before: int
    malformed: int


def ensure_topic(config: Mapping[str, str], name: str, settings: Mapping[str, str]) -> None:
    """Create the topic unless it is there.

    Raises:
        StackError: Kafka did not.
    """
    topic = NewTopic(name, PARTITIONS, replication_factor=1, config=dict(settings))
    client = AdminClient(dict(config))
    try:
        client.create_topics([topic])[name].result(15)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise StackError(
                f"topic {name} was not created: {error.args[0].str()}", _AGAIN
            ) from error


def send_flights(config: Mapping[str, str], count: int, report: Callable[[str], None]) -> Sent:
    """Send what the topic does not hold yet of so many flights; their order never changes.

    Raises:
        StackError: Kafka has not taken all of them.
    """
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
    finish(producer, TOPIC)
    return Sent(now=sent, before=sum(there), malformed=malformed)


def finish(producer: Producer, topic: str) -> None:
    """Wait until Kafka has every record.

    Raises:
        StackError: it has not.
    """
    left = producer.flush(_FLUSH_SECONDS)
    if left:
        facts = f"topic {topic}: {left} records were not taken within {_FLUSH_SECONDS} s"
        raise StackError(facts, _AGAIN)


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
