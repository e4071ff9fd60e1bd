"""What Spark's job does to a branch, done by PyIceberg: a row for each offset, without a value."""

from collections import Counter
from dataclasses import dataclass
from typing import cast

from support.lake import CLUSTER_ID, TOPIC_ID, Lake, append

from frazil.iceberg.branches import create_branch
from frazil.iceberg.catalog import dead_letters_name
from frazil.ingest.messages import PartitionCount, StageRequest, StageResult
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.offsets import iterate_ranges, remove_runs, unpack_ranges


@dataclass
class Topic:
    """A topic of two partitions, as a broker would describe it."""

    ends: tuple[int, int] = (3, 2)

    def fetch_topic(self, topic: str, _isolation: str) -> TopicFacts:
        """Describe the topic."""
        offsets = tuple(PartitionOffsets(0, end) for end in self.ends)
        return TopicFacts(topic, TOPIC_ID, CLUSTER_ID, offsets)

    def fetch_topics(self, topics: list[str], isolation: str) -> tuple[TopicFacts, ...]:
        """Describe each topic."""
        return tuple(self.fetch_topic(topic, isolation) for topic in topics)

    def fetch_topic_settings(self, _topic: str) -> dict[str, str]:
        """Return no setting: each has Kafka's default."""
        return {}


def stage_offsets(lake: Lake, request: StageRequest, bad: int = 0) -> StageResult:
    """Stage a row for each requested offset; the first ones become dead letters instead."""
    places = [
        {"topic": topic, "partition": partition, "offset": offset}
        for layer in remove_runs(request.ranges, request.isolated)
        for topic, partition, offsets in iterate_ranges(unpack_ranges(layer))
        for offset in range(offsets.start, offsets.end)
    ]
    bad = min(bad, len(places))
    rows = [{"id": 1, "name": "x", "_kafka": place} for place in places[bad:]]
    append(lake.catalog, lake.table, rows, request.branch)
    if bad:
        name = dead_letters_name(request.table)
        create_branch(lake.store, name, request.branch)
        letters = [
            {"attempt": request.branch, "reason": "malformed_json", "_kafka": place}
            for place in places[:bad]
        ]
        append(lake.catalog, lake.store.load(name), letters, request.branch)
    read = Counter(cast("int", place["partition"]) for place in places)
    good = Counter(cast("int", place["partition"]) for place in places[bad:])
    return StageResult(
        rows_read=len(places),
        rows_good=len(rows),
        rows_invalid=bad,
        rows_dead=bad,
        partitions=tuple(
            PartitionCount(topic="orders", partition=p, rows_read=read[p], rows_good=good[p])
            for p in request.ranges["orders"]
        ),
        metrics={},
        min_timestamp_ms=None,
        max_timestamp_ms=None,
        value_schema_ids=(1,),
    )
