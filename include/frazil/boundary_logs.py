"""A cluster's topic as prints of its records, around and behind a boundary."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from confluent_kafka import Message

from frazil.audit_reading import KafkaAuditedLog
from frazil.boundary import WANTED_RECORDS, Copy, Known, Prints, make_print
from frazil.coordinates import Offsets
from frazil.errors import NotMovableError
from frazil.kafka_log import KafkaLog, TopicFacts
from frazil.offsets import OffsetRange
from frazil.state import StreamState


@dataclass
class _Heard:
    """What a consumer was shown of one partition."""

    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    prints: "array[int]" = field(default_factory=lambda: array("q"))
    floor_ms: int | None = None

    def between(self, span: OffsetRange) -> tuple[Offsets, Prints]:
        """Give offsets and prints of a range."""
        offsets = np.array(self.offsets, np.int64)
        is_inside = (offsets >= span.start) & (offsets < span.end)
        return offsets[is_inside], np.array(self.prints, np.int64)[is_inside]


@dataclass(frozen=True)
class PrintedLog:
    """A cluster's topic as prints of its records; with values, or by timestamp and key alone.

    Without times, where a copy has other ones than its source.
    """

    kafka: KafkaLog
    config: Mapping[str, str]
    isolation: str
    with_values: bool
    with_times: bool = True

    def find_known(self, state: StreamState, topic: TopicFacts) -> dict[int, Known]:
        """Find the records around each recovery point on the cluster that the ledger read.

        Raises:
            NotMovableError: it is another cluster or topic, or it ends before the recovery point.
        """
        _refuse_stranger(state, topic)
        spans: dict[int, OffsetRange] = {}
        nexts = dict(enumerate(state.offsets.get(topic.topic, ())))
        for number, old_next in nexts.items():
            kept = topic.partitions[number]
            if old_next > kept.end:
                raise NotMovableError(
                    f"{topic.topic}-{number}: the old cluster ends at offset {kept.end}, the "
                    f"ledger has read to {old_next}: its log was cut",
                    "leave --old-connection out: then the table's own rows are compared",
                )
            start = max(kept.earliest, old_next - WANTED_RECORDS)
            if kept.earliest <= old_next:
                spans[number] = OffsetRange(start, min(kept.end, old_next + WANTED_RECORDS))
        heard = self._hear(topic.topic, spans)
        return {
            number: self._know(number, old_next, topic, heard.get(number, _Heard()))
            for number, old_next in nexts.items()
        }

    def _know(self, number: int, old_next: int, topic: TopicFacts, heard: _Heard) -> Known:
        kept = topic.partitions[number]
        first = max(0, old_next - WANTED_RECORDS)
        return Known(
            before=heard.between(OffsetRange(first, old_next))[1],
            after=heard.between(OffsetRange(old_next, old_next + WANTED_RECORDS))[1],
            source="the old cluster's records, byte by byte",
            floor_ms=heard.floor_ms,
            is_empty=kept.earliest == kept.end == old_next,
        )

    def read_copies(
        self, topic: TopicFacts, known: Mapping[int, Known], given: Mapping[int, int]
    ) -> dict[int, Copy]:
        """Read each partition from where its boundary may lie to its end."""
        count = len(topic.partitions)
        first = self.kafka.fetch_offsets_at(topic.topic, count, 0, self.isolation)
        starts: dict[int, int] = {}
        for number, each in known.items():
            kept = topic.partitions[number]
            start = kept.end
            if each.floor_ms is not None:
                at = max(0, each.floor_ms)
                start = self.kafka.fetch_offsets_at(topic.topic, count, at, self.isolation)[number]
            if number in given:
                start = min(start, max(0, given[number] - WANTED_RECORDS))
            starts[number] = max(start, kept.earliest)
        spans = {
            number: OffsetRange(start, topic.partitions[number].end)
            for number, start in starts.items()
            if start < topic.partitions[number].end
        }
        heard = self._hear(topic.topic, spans)
        copies: dict[int, Copy] = {}
        for number, start in starts.items():
            kept = topic.partitions[number]
            offsets, prints = heard.get(number, _Heard()).between(OffsetRange(0, kept.end))
            is_whole = start <= first[number]
            copies[number] = Copy(offsets, prints, kept.earliest, kept.end, is_whole)
        return copies

    def _hear(self, topic: str, spans: Mapping[int, OffsetRange]) -> dict[int, _Heard]:
        heard: dict[int, _Heard] = {number: _Heard() for number in spans}

        def see(message: Message) -> None:
            own = heard[message.partition() or 0]
            at_ms = message.timestamp()[1] if self.with_times else 0
            value = message.value() if self.with_values else b""
            own.offsets.append(message.offset() or 0)
            own.prints.append(make_print(at_ms, _bytes(message.key()), _bytes(value)))
            own.floor_ms = at_ms if own.floor_ms is None else min(own.floor_ms, at_ms)

        if spans:
            KafkaAuditedLog(self.kafka, self.config).fetch_delivered(
                topic, spans, self.isolation, see
            )
        return heard


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _refuse_stranger(state: StreamState, topic: TopicFacts) -> None:
    """Refuse to compare with what the ledger never read."""
    known = (state.cluster_id, state.topic_ids.get(topic.topic, topic.topic_id))
    if known != (topic.cluster_id, topic.topic_id):
        raise NotMovableError(
            f"topic {topic.topic} of the old connection has id {topic.topic_id} on cluster "
            f"{topic.cluster_id}; the ledger read id {known[1]} on cluster {known[0]}",
            "give the connection of the cluster that the ledger read, or leave it out",
        )
