"""Let the auditor judge a lake against a topic that delivers every offset up to given ends."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.lake import Lake, make_topic

from faults import audit_tables, audit_values, auditor
from faults.audit_values import PartitionLog
from frazil.kafka.cluster import TopicFacts


@dataclass(frozen=True)
class ImaginedLog:
    """The same topic as a cluster would describe it: nothing has aged out."""

    ends: tuple[int, ...]

    def fetch_topic(self, topic: str, _isolation: str) -> TopicFacts:
        """Describe the topic."""
        return make_topic(self.ends, topic)

    def fetch_topic_settings(self, _topic: str) -> dict[str, str]:
        """Return no settings: Kafka's defaults."""
        return {}


def find_faults(lake: Lake, *ends: int) -> tuple[audit_values.Finding, ...]:
    """Recompute E1 to E6 of the lake's table; `ends` are those of the topic's partitions."""
    log = {p: PartitionLog(0, end, np.arange(end)) for p, end in enumerate(ends)}
    tables = audit_tables.open_tables(lake.catalog, lake.stream.table.name)
    report = auditor.audit(
        tables, lake.stream.stream, "read_committed", lambda topic, _: {topic: log}
    )
    return report.findings


def find_broken(lake: Lake, *ends: int) -> set[str]:
    """Name the invariants that do not hold."""
    return {finding.invariant for finding in find_faults(lake, *ends)}


def list_files(lake: Lake) -> set[Path]:
    """List every file of the warehouse."""
    return {path for path in (lake.folder / "warehouse").rglob("*") if path.is_file()}
