"""Recompute the invariants E1 to E7 of one stream's table from Kafka and Iceberg alone.

The auditor shares no code with the product: a mistake in the product cannot hide itself here. It
knows the commit protocol and reads the topic, the table's metadata and Parquet files, its dead
letters and `frazil.ledger`, nothing else.

    PYTHONPATH=tests python -m faults.auditor --catalog-name lake --property type=sql \
        --property uri=... --table demo.flights --bootstrap 127.0.0.1:9092 --stream flights

prints one JSON document and exits with 0 when nothing was found, with 1 when something was.

E1 every delivered record is in the table or counts as a dead letter, exactly once
E2 the ranges on main's ancestry have no gap and no overlap; epochs rise as their kinds say
E3 rows = read - quarantined - skipped, in the summary, the manifests and the files
E4 the recovery point is never ahead of the data and goes back only by a recorded rewind
E5 no file is referenced twice, none is missing, footers and manifests agree
E6 nobody else changed rows
E7 repeating a finished run is a no-op: compare `fingerprint` before and after

What cannot be told is left out and named in `facts`: an upsert stream is not searched for missing
rows (its key is not in the metadata), nor is a partition below its `checked_from` offset; there
only the counts are compared.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from faults.audit_delivery import Delivery
from faults.audit_history import (
    audit_counts,
    audit_end,
    audit_foreign,
    audit_history,
    audit_setback,
)
from faults.audit_kafka import read_kafka_topic
from faults.audit_tables import (
    load_if_exists,
    open_tables,
    read_history,
    read_letters,
    read_live,
    read_rows,
    restore_letters,
)
from faults.audit_values import (
    LETTER_TYPES,
    NOTHING_HELD,
    ROW_TYPES,
    AuditReport,
    Findings,
    History,
    Partition,
    PartitionLog,
    Tables,
    TopicReader,
    write_name,
)


def audit(tables: Tables, stream: str, isolation: str, read_topic: TopicReader) -> AuditReport:
    """Audit one stream of an open table; `read_topic` takes a topic and the isolation level."""
    findings = Findings()
    history = read_history(tables, stream, findings)
    live = read_live(tables.base, ROW_TYPES, findings)
    letters = read_letters(tables.dead_letters, history.topics, findings)
    rows = read_rows(history, live, findings)
    # Kafka is read after the table: by then it can only have more.
    logs = {
        (topic, number): log
        for topic in sorted(history.topics)
        for number, log in read_topic(topic, isolation).get(topic, {}).items()
    }
    audit_history(history, stream, findings)
    audit_setback(tables.base, history, stream, findings)
    audit_end(history, logs, findings)
    audit_counts(tables.base, history, live, findings)
    audit_foreign(history, findings)
    delivery = Delivery(history, restore_letters(history, letters, findings), findings)
    for partition in sorted({*delivery.spans, *rows, *letters.held}):
        delivery.audit_partition(partition, rows.get(partition, NOTHING_HELD), logs.get(partition))
    delivery.audit_quarantined()
    if not history.is_upsert:
        delivery.audit_totals()
    facts = {
        "head": tables.base.metadata.current_snapshot_id,
        "isolation": isolation,
        "live_files": len(live.files),
        "rows_in_table": live.rows.num_rows,
        "rows_of_stream": sum(len(held.offsets) for held in rows.values()),
        "dead_letters": sum(len(held.offsets) for held in letters.held.values()),
        **history_facts(history),
        **delivery_facts(delivery, logs),
    }
    return AuditReport(".".join(tables.base.name()), stream, tuple(findings), facts)


def history_facts(history: History) -> dict[str, object]:
    """Count the snapshots on the ancestry and name the recovery point."""
    state, events = history.state, history.events
    return {
        "mode": "upsert" if history.is_upsert else "append",
        "snapshots": dict(Counter(event.kind or "without kind" for event in events)),
        "archived_snapshots": sum(not event.is_retained for event in events),
        "inherited_snapshots": len(history.inherited),
        "foreign_snapshots": [event.snapshot_id for event in history.foreign_events],
        "rows_skipped": sum(event.count("frazil.rows-skipped") for event in events if event.ranges),
        "epoch": state.epoch if state else None,
        "recovery_point": {write_name(k): n for k, n in (state.offsets if state else {}).items()},
    }


def delivery_facts(delivery: Delivery, logs: Mapping[Partition, PartitionLog]) -> dict[str, object]:
    """Count what was compared, and say from which offset Kafka could be asked."""
    starts = {partition: delivery.list_starts(partition) for partition in sorted(delivery.spans)}
    checked_from = {
        write_name(partition): max(logs[partition].earliest, min(found))
        for partition, found in starts.items()
        if found and partition in logs
    }
    return {
        "records_delivered": sum(n for index, n in delivery.delivered.items() if index >= 0),
        "dead_letters_counting": delivery.counting,
        "checked_from": checked_from,
    }


def audit_table(
    catalog_properties: Mapping[str, str],
    catalog_name: str,
    table: str,
    bootstrap: str,
    stream: str,
) -> AuditReport:
    """Audit one stream of a table as `read_committed` delivers it.

    Raises:
        NoSuchTableError: there is no such table.
        KafkaException: the broker refused.
        TimeoutError: the broker went silent.
    """
    tables = open_tables(load_catalog(catalog_name, **catalog_properties), table)
    reader = functools.partial(read_kafka_topic, bootstrap)
    return audit(tables, stream, "read_committed", reader)


def fingerprint(table: Table) -> str:
    """Return the head's id with digests of all rows' and dead letters' coordinates (E7).

    Equal before and after a repetition says that it published neither rows nor letters.
    """
    letters = load_if_exists(table.catalog, ".".join(table.name()) + "__dead_letters")
    parts = [str(table.metadata.current_snapshot_id)]
    for found, types in ((table, ROW_TYPES), (letters, LETTER_TYPES)):
        rows = read_live(found, types, Findings()).rows.select(list(types))
        columns = [column.to_pylist() for column in rows.columns]
        lines = sorted(map(repr, zip(*columns, strict=True)))
        parts.append(
            f"{len(lines)}:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"
        )
    return " ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report as JSON and return 1 when something was found."""
    parser = argparse.ArgumentParser(description="Recompute E1 to E6 of a Frazil table.")
    parser.add_argument("--catalog-name", required=True)
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--table", required=True, metavar="NAMESPACE.NAME")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--stream", required=True)
    levels = ("read_committed", "read_uncommitted")
    parser.add_argument("--isolation", default=levels[0], choices=levels)
    chosen = parser.parse_args(arguments)
    properties = dict(item.split("=", 1) for item in chosen.property)
    tables = open_tables(load_catalog(chosen.catalog_name, **properties), chosen.table)
    reader = functools.partial(read_kafka_topic, chosen.bootstrap)
    report = audit(tables, chosen.stream, chosen.isolation, reader)
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
