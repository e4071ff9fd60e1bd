"""What an audit reads: coordinates of a table's rows, and the offsets that Kafka delivers."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from frazil.connections import to_librdkafka
from frazil.errors import KafkaUnavailableError
from frazil.kafka.cluster import KafkaLog, TopicFacts
from frazil.ledger.coordinates import NO_OFFSETS, Offsets
from frazil.ledger.offsets import OffsetRange

SILENCE_SECONDS = 30.0


_FETCH_RECORDS = 10_000


_FETCH_WAIT_SECONDS = 0.1


class OffsetLog(Protocol):
    """A cluster as an audit asks it."""

    def fetch_topic(self, topic: str, isolation: str) -> TopicFacts:
        """Fetch ids and offsets of every partition."""

    def fetch_topic_settings(self, topic: str) -> Mapping[str, str]:
        """Fetch the topic's effective configuration."""

    def fetch_delivered(
        self, topic: str, ranges: Mapping[int, OffsetRange], isolation: str
    ) -> Mapping[int, Offsets]:
        """Read which offsets of the ranges a consumer gets, ascending."""


class OffsetConsumer:
    """Read a topic as any consumer does, and keep nothing but the offsets."""

    def __init__(self, log: KafkaLog, config: Mapping[str, str]) -> None:
        """Take the cluster and librdkafka's settings for it."""
        self._log = log
        self._config = config

    def fetch_topic(self, topic: str, isolation: str) -> TopicFacts:
        """Fetch ids and offsets of every partition."""
        return self._log.fetch_topic(topic, isolation)

    def fetch_topic_settings(self, topic: str) -> Mapping[str, str]:
        """Fetch the topic's effective configuration."""
        return self._log.fetch_topic_settings(topic)

    def fetch_delivered(
        self,
        topic: str,
        ranges: Mapping[int, OffsetRange],
        isolation: str,
        see: Callable[[Message], None] | None = None,
    ) -> Mapping[int, Offsets]:
        """Read which offsets of the ranges a consumer gets; aged-out ones are left out.

        `see` is shown every record on the way, some behind a range's end too.

        Raises:
            KafkaUnavailableError: nothing arrived for 30 seconds before a range's end.
        """
        consumer = Consumer(
            {
                "log_level": 0,
                "fetch.queue.backoff.ms": 10,
                "queued.min.messages": 200_000,
                **to_librdkafka(self._config),
                "group.id": "frazil-audit",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, p, r.start) for p, r in ranges.items()])
            return _consume(consumer, topic, ranges, see)
        finally:
            consumer.close()


def _consume(
    consumer: Consumer,
    topic: str,
    ranges: Mapping[int, OffsetRange],
    see: Callable[[Message], None] | None,
) -> Mapping[int, Offsets]:
    """Consume all ranges together; a range ends at its last offset or where the log does."""
    found: dict[int, list[Offsets]] = {partition: [NO_OFFSETS] for partition in ranges}
    waiting = set(ranges)
    heard_at, problem = time.monotonic(), "no answer"
    while waiting:
        messages = consumer.consume(_FETCH_RECORDS, _FETCH_WAIT_SECONDS)
        done: set[int] = set()
        for message in (m for m in messages if m.error() is not None):
            problem = str(message.error())
            if _is_end(message):
                done.add(message.partition() or 0)
        if see is not None:
            for message in (m for m in messages if m.error() is None):
                see(message)
        for partition, offsets in _group_offsets(messages).items():
            wanted = ranges[partition]
            found[partition].append(offsets[(offsets >= wanted.start) & (offsets < wanted.end)])
            if offsets[-1] >= wanted.end - 1:
                done.add(partition)
            heard_at = time.monotonic()
        for partition in done & waiting:
            waiting.discard(partition)
            consumer.pause([TopicPartition(topic, partition)])
        if waiting and time.monotonic() - heard_at > SILENCE_SECONDS:
            raise _silence(topic, waiting, problem)
    return {partition: np.concatenate(parts) for partition, parts in found.items()}


def _group_offsets(messages: Iterable[Message]) -> dict[int, Offsets]:
    grouped: defaultdict[int, list[int]] = defaultdict(list)
    for message in messages:
        if message.error() is None:
            grouped[message.partition() or 0].append(message.offset() or 0)
    return {p: np.array(offsets, dtype=np.int64) for p, offsets in grouped.items()}


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - its name


def _silence(topic: str, waiting: set[int], problem: str) -> KafkaUnavailableError:
    return KafkaUnavailableError(
        f"reading {topic} partitions {sorted(waiting)}: nothing arrived for "
        f"{SILENCE_SECONDS:.0f} s: {problem}",
        "`frazil doctor` checks the broker; then audit again, nothing was changed",
    )
