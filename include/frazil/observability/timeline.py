"""Timeline of a stream and its table: each event once, in order of time.

Most events are derived from the table: snapshots, the ledger archive, decisions in properties.
Failures, drills and maintenance results are not in the table; `frazil.events` records them locally.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from frazil.events import Event
from frazil.iceberg.branches import parse_branch
from frazil.ledger import keys
from frazil.ledger.authors import describe_decision
from frazil.ledger.foreign_snapshots import name_kind
from frazil.ledger.offsets import describe_ranges, parse_ranges
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors
from frazil.ledger.stored_properties import SchemaChangeRecord, read_schema_changes
from frazil.messages import count_noun
from frazil.state_tables.state_status import describe_merge
from frazil.streams.timestamps import describe_seconds, from_epoch_ms

_COUNTS: Mapping[str, str] = {
    keys.ROWS_WRITTEN: "rows",
    keys.ROWS_QUARANTINED: "dead letters",
    keys.ROWS_SKIPPED: "skipped",
    keys.ROWS_DELETED: "deleted",
}
_GROWTH: Mapping[str, str] = {
    "added-files-size": "bytes_added",
    "removed-files-size": "bytes_removed",
    "total-files-size": "bytes_total",
    "total-data-files": "files_total",
    "total-records": "rows_total",
}


def join_events(*groups: Iterable[Event]) -> list[Event]:
    """Merge groups in order of time, each event once; the first group's version is kept."""
    found: dict[str, Event] = {}
    for group in groups:
        for event in group:
            found.setdefault(event.event_id, event)
    return sorted(found.values(), key=lambda event: (event.at, event.event_id))


def derive_events(history: History, stream: str) -> Iterator[Event]:
    """Derive events from main's ancestry, the archive and properties.

    The archive has everything that was ever on main, including what was rolled back. A staged
    snapshot is part of the one that published it.
    """
    found = dict(history.load_archive().entries)
    found |= {entry.snapshot_id: entry for entry in walk_ancestors(history)}
    staged = {entry.summary.get(keys.SOURCE_SNAPSHOT_ID) for entry in found.values()}
    for entry in found.values():
        if keys.KIND in entry.summary or str(entry.snapshot_id) not in staged:
            yield _describe_snapshot(history, entry, stream)
    for number, record in read_schema_changes(history.properties, history.table):
        yield _describe_schema_change(history, f"{keys.SCHEMA_CHANGE_PREFIX}{number}", record)


def _describe_snapshot(history: History, entry: LedgerEntry, stream: str) -> Event:
    summary = entry.summary
    facts: dict[str, str | int] = {"snapshot_id": entry.snapshot_id}
    facts |= {name: int(summary[key]) for key, name in _GROWTH.items() if key in summary}
    if summary.get("total-delete-files", "0") != "0":
        facts.pop("rows_total", None)  # it counts rows that delete files hide
    facts |= _measure_phases(entry)
    if keys.BATCH_ID in summary:
        facts["batch_id"] = summary[keys.BATCH_ID]
    return Event(
        event_id=f"{history.table_uuid}:{entry.snapshot_id}",
        at=from_epoch_ms(entry.committed_at_ms),
        stream=summary.get(keys.STREAM, stream if keys.KIND in summary else ""),
        table=history.table,
        kind=name_kind(summary),
        text=describe_merge(summary, stream) or ", ".join(_list_texts(summary)),
        run_id=summary.get(keys.RUN_ID),
        facts=facts,
    )


def _list_texts(summary: Mapping[str, str]) -> Iterator[str]:
    counts = [
        f"{int(summary[k]):,} {name}" for k, name in _COUNTS.items() if summary.get(k, "0") != "0"
    ]
    yield from counts
    if keys.RANGES in summary:
        yield describe_ranges(parse_ranges(summary[keys.RANGES]))
    if keys.ROWS_LATE in summary:
        rows, by_ms = int(summary[keys.ROWS_LATE]), int(summary[keys.LATE_BY_MS])
        yield f"{count_noun(rows, 'late record')}, up to {describe_seconds(by_ms / 1000)}"
    if keys.UNNAMED_FIELDS in summary:
        fields = json.loads(summary[keys.UNNAMED_FIELDS])
        yield f"unmapped fields (no matching column): {', '.join(fields)}"
    if decision := describe_decision(summary):
        yield decision


def _measure_phases(entry: LedgerEntry) -> dict[str, int]:
    """Return milliseconds of plan, stage, check (with the wait for it) and publish, where known.

    The staging branch's name holds the start of the stage. Replays, backfills and snapshots of
    older versions have no planning time.
    """
    branch = parse_branch(entry.summary.get(keys.ATTEMPT, ""), entry.committed_at_ms)
    clock = json.loads(entry.summary.get(keys.CLOCK, "{}"))
    if branch is None or not {"staged", "checked"} <= clock.keys():
        return {}
    born = entry.committed_at_ms - branch.age_ms
    is_planned = {"planning", "planned"} <= clock.keys()
    planned = {"plan_ms": clock["planned"] - clock["planning"]} if is_planned else {}
    return planned | {
        "stage_ms": clock["staged"] - born,
        "check_ms": clock["checked"] - clock["staged"],
        "publish_ms": entry.committed_at_ms - clock["checked"],
    }


def _describe_schema_change(history: History, name: str, record: SchemaChangeRecord) -> Event:
    changes, answer = "; ".join(record.changes), record.answer or "accept"
    text = changes if answer == "accept" else f"{answer}: {changes}"
    return Event(
        event_id=f"{history.table_uuid}:{name}",
        at=record.at,
        stream=record.stream,
        table=history.table,
        kind="schema_change",
        text=f"{text}, {record.by}: {record.reason}",
        facts={"schema_id": record.schema_id},
    )


def describe_phases(facts: Mapping[str, str | int]) -> str:
    """Return the phases of a batch in seconds, as `plan 0.4 stage 12.1`."""
    phases = ("plan", "stage", "check", "publish")
    known = [(phase, facts[f"{phase}_ms"]) for phase in phases if f"{phase}_ms" in facts]
    return " ".join(f"{phase} {int(ms) / 1000:.1f}" for phase, ms in known)
