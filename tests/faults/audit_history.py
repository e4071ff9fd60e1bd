"""The auditor's checks of a stream's history: ranges, epochs, counts, other writers (E2 to E6)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from pyiceberg.table import Table

from faults.audit_tables import list_files
from faults.audit_values import (
    EPOCH_RISES,
    TAKING,
    UNREADABLE_TEXT,
    WITH_ROWS,
    WITHOUT_ROWS,
    Event,
    Findings,
    History,
    Live,
    Partition,
    PartitionLog,
    Range,
    State,
    parse_state,
    summary_of,
    write_name,
)


# ---- E2 and E4: the states on the ancestry ------------------------------------------------------
def audit_history(history: History, stream: str, findings: Findings) -> None:
    """Follow the stream's state from snapshot to snapshot."""
    if history.cut_at is not None:
        text = f"the ancestry is cut: neither metadata nor ledger knows {history.cut_at}"
        findings.say("E2", text)
    if history.state is None:
        findings.say("E2", f"no snapshot on main's ancestry carries frazil.state.{stream}")
    previous: State | None = None
    ended: dict[str, State | None] = {}
    for event in history.events:
        if event.kind in ("replay", "backfill", "redrive"):
            named = event.summary.get("frazil.letters-before", "")
            audit_beside(ended.get(named, previous), event, findings)
        ended[str(event.snapshot_id)] = previous
        if event.kind in ("gap", "adopt") and event.state and not event.is_authored:
            findings.say("E6", f"{event}: without a name or reason")
        if previous is None and event.state is not None:
            if event.kind not in ("bootstrap", "adopt", "rewind") and history.cut_at is None:
                findings.say("E2", f"{event}: the first state is not a bootstrap's")
        else:
            audit_step(previous, event, findings)
        previous = event.state or previous
    ids = [
        event.summary.get("frazil.batch-id") for event in history.events if event.kind in WITH_ROWS
    ]
    for batch, times in Counter(ids).items():
        if batch and times > 1:
            findings.say("E2", f"batch {batch} was published {times} times")


def audit_beside(point: State | None, event: Event, findings: Findings) -> None:
    """Check that what moves no offsets stays below the recovery point of the log that it is of."""
    known = point.offsets if point else {}
    ends = [(moved.partition, moved.end) for moved in event.ranges]
    ends += [(key, int(taken[-1]) + 1) for key, taken in event.taken.items()]
    for partition, end in ends:
        if end > known.get(partition, 0):
            text = f"{event}: {write_name(partition)} to {end} is above the recovery point"
            findings.say("E4", text)


def audit_step(previous: State | None, event: Event, findings: Findings) -> None:
    """Check what one snapshot does to the recovery point `previous`."""
    if event.state is None or previous is None:
        if event.kind == "ingest" and event.ranges:
            findings.say("E4", f"{event}: moves rows without a state")
    elif event.kind == "bootstrap":
        findings.say("E2", f"{event}: a second bootstrap on one ancestry")
    elif event.kind not in EPOCH_RISES:
        findings.say("E4", f"{event}: carries a state, which its kind must not")
    else:
        audit_identity(previous, event, event.state, findings)
        check = {"move": audit_move, "gap": audit_gap}.get(event.kind, audit_offsets)
        check(previous, event, event.state, findings)


def audit_identity(previous: State, event: Event, state: State, findings: Findings) -> None:
    """Check how the epoch rises, the batch, and the ids of cluster and topics."""
    known = {cluster for cluster in (previous.cluster, state.cluster) if cluster}
    if (len(known) > 1) != (event.kind == "move"):
        findings.say("E2", f"{event}: from cluster {previous.cluster} to {state.cluster}")
    if event.kind == "move" and not (event.summary.get("frazil.by") and moved_by(event)):
        findings.say("E6", f"{event}: without a name or the moved offsets")
    least, most = EPOCH_RISES[event.kind]
    rise = state.epoch - previous.epoch
    if rise < least or (most is not None and rise > most):
        findings.say("E2", f"{event}: the epoch goes from {previous.epoch} to {state.epoch}")
    batch = event.summary.get("frazil.batch-id")
    if event.kind == "ingest" and batch != state.batch:
        findings.say("E2", f"{event}: frazil.batch-id is {batch}, the state's {state.batch}")
    if (state.batch == previous.batch) != (event.kind == "carry"):
        findings.say(
            "E2", f"{event}: the state's batch goes from {previous.batch} to {state.batch}"
        )
    for topic in previous.topic_ids.keys() & state.topic_ids.keys():
        if event.kind == "ingest" and previous.topic_ids[topic] != state.topic_ids[topic]:
            findings.say("E2", f"{event}: topic {topic} is another one, by its id")


def moved_by(event: Event) -> dict[Partition, tuple[int, int]]:
    """Return the next offsets before and after, as a move to another cluster tells them."""
    try:
        told = json.loads(event.summary.get("frazil.moved", "{}")).get("partitions", {})
        return {
            (topic, int(number)): (int(listed[0]), int(listed[1]))
            for topic, partitions in told.items()
            for number, listed in partitions.items()
        }
    except UNREADABLE_TEXT:
        return {}


def audit_move(previous: State, event: Event, state: State, findings: Findings) -> None:
    """Check that a move to another cluster says what it did to each partition."""
    for partition in sorted({*previous.offsets, *state.offsets}):
        went = (previous.offsets.get(partition, 0), state.offsets.get(partition, 0))
        told = moved_by(event).get(partition, (went[0], went[0]))
        if told != went:
            text = f"{event}: {write_name(partition)} goes {went}, the move says {told}"
            findings.say("E2", text)


def audit_offsets(previous: State, event: Event, state: State, findings: Findings) -> None:
    """Check that each partition moves as the snapshot's kind and ranges say."""
    moves = {moved.partition: moved for moved in event.ranges}
    for partition in sorted({*previous.offsets, *state.offsets, *moves}):
        before, after = previous.offsets.get(partition, 0), state.offsets.get(partition, 0)
        moved = moves.get(partition, Range(partition, before, before))
        name = f"{event}: {write_name(partition)}"
        if moved.start > before:
            findings.say("E2", f"{name}: gap, [{before}, {moved.start}) is in no range")
        if moved.start < before:
            findings.say("E2", f"{name}: overlap, [{moved.start}, {before}) is in two ranges")
        if after < before:
            findings.say("E4", f"{name}: the state goes back from {before} to {after}")
        elif after > moved.end:
            findings.say("E4", f"{name}: the state says {after}, the data end at {moved.end}")
        elif after < moved.end:
            findings.say("E2", f"{name}: the state says {after}, the range ends at {moved.end}")


def audit_gap(previous: State, event: Event, state: State, findings: Findings) -> None:
    """Check that a gap says exactly what it leaves out: each partition's move forward.

    It may go back where the topic is another one or its log was cut: see `list_restarts`.
    """
    moved = {
        Range(partition, previous.offsets.get(partition, 0), after)
        for partition, after in state.offsets.items()
        if after > previous.offsets.get(partition, 0)
    }
    for each in sorted(moved.symmetric_difference(event.lost), key=str):
        says = "leaves it out and does not say so" if each in moved else "says so, and does not"
        text = f"[{each.start}, {each.end}): {says}"
        findings.say("E2", f"{event}: {write_name(each.partition)} {text}")


def audit_setback(table: Table, history: History, stream: str, findings: Findings) -> None:
    """Find states above main's: main was set back without a recorded rewind."""
    epochs: dict[str, int] = {}
    try:
        for snapshot in table.metadata.snapshots:
            if text := summary_of(snapshot).get(f"frazil.state.{stream}"):
                epochs[f"snapshot {snapshot.snapshot_id}"] = parse_state(text).epoch
        hint = json.loads(table.properties.get(f"frazil.hint.{stream}", "{}"))
        epochs["the hint"] = int(hint.get("epoch", -1))
    except UNREADABLE_TEXT as error:
        findings.say("E4", f"a state or hint cannot be read: {error!r}")
    main_epoch = history.state.epoch if history.state else -1
    for where, epoch in epochs.items():
        if epoch > main_epoch:
            findings.say(
                "E4", f"{where} has epoch {epoch}, main {main_epoch}, and no rewind says why"
            )


def audit_end(history: History, logs: Mapping[Partition, PartitionLog], findings: Findings) -> None:
    """Find partitions whose recovery point lies beyond what Kafka has."""
    for partition, next_offset in (history.state.offsets if history.state else {}).items():
        log = logs.get(partition)
        if log is None or next_offset > log.end:
            has = f"ends at {log.end}" if log else "does not have it"
            text = f"{write_name(partition)}: the recovery point is {next_offset}, Kafka {has}"
            findings.say("E4", text)


# ---- E3 and E6: counts and foreign snapshots ----------------------------------------------------
def audit_counts(table: Table, history: History, live: Live, findings: Findings) -> None:
    """Check each snapshot's counts against its summary, its manifests and its files."""
    by_id = {event.snapshot_id: event for event in history.events}
    for event in history.events:
        if (event.kind in WITHOUT_ROWS or event.is_seal) and event.changed_records:
            findings.say("E3", f"{event}: must be empty, changes {event.changed_records} records")
        if event.kind in TAKING:
            audit_taking(event, findings)
        is_mine = event.kind in WITH_ROWS and (event.ranges or event.taken or event.state)
        if not is_mine or (event.kind == "ingest" and event.is_seal):
            continue
        audit_conservation(event, findings)
        source = by_id.get(event.parent_id or 0) if event.is_seal else event
        if source is not None and source.summary.get("operation", "append") == "append":
            audit_added(table, event, source, live, findings)


def audit_taking(event: Event, findings: Findings) -> None:
    """Check that a deletion took as many rows as it lists, and says who wanted it."""
    listed = sum(len(offsets) for offsets in event.gone.values())
    said, taken = (
        event.count("frazil.rows-deleted"),
        event.count("deleted-records") - event.count("added-records"),
    )
    if said != taken or listed > said:
        text = f"{event}: says {said} rows, lists {listed}, took {taken}"
        findings.say("E3", text)
    if event.kind == "erase" and not event.is_authored:
        findings.say("E6", f"{event}: without a name or reason")


def audit_conservation(event: Event, findings: Findings) -> None:
    """Check read = written + quarantined + skipped in one summary."""
    names = ("read", "written", "quarantined", "skipped")
    for name in names:
        if not event.summary.get(f"frazil.rows-{name}", "").isdigit():
            findings.say("E3", f"{event}: no exact frazil.rows-{name}")
    read, written, quarantined, skipped = (event.count(f"frazil.rows-{name}") for name in names)
    if read != written + quarantined + skipped:
        text = (
            f"read {read} is not written {written} + quarantined {quarantined} + skipped {skipped}"
        )
        findings.say("E3", f"{event}: {text}")


def audit_added(table: Table, event: Event, source: Event, live: Live, findings: Findings) -> None:
    """Compare rows-written with the records that the snapshot `source` added, by its files too."""
    written, added = event.count("frazil.rows-written"), source.count("added-records")
    if added != written:
        findings.say("E3", f"{event}: wrote {written} rows, added-records is {added}")
    snapshot = table.metadata.snapshot_by_id(source.snapshot_id)
    mine = [file for file in live.files if file.snapshot_id == source.snapshot_id]
    if snapshot is None or sum(file.records for file in mine) == written:
        return
    # A compaction took files from the head: the snapshot's own manifests still name them.
    own = source.snapshot_id
    files = list_files(table, snapshot, lambda m: m.added_snapshot_id == own, findings)
    if (rows := sum(file.records for file in files if file.snapshot_id == own)) != written:
        findings.say("E3", f"{event}: wrote {written} rows, its files hold {rows}")
    for path in {file.path for file in files} - {file.path for file in live.files}:
        if not table.io.new_input(path).exists():
            findings.say("E5", f"{event}: data file {path} is missing")


def audit_foreign(history: History, findings: Findings) -> None:
    """Find foreign snapshots that changed rows, and compactions that lost or made some."""
    for event in history.foreign_events:
        added, deleted = event.count("added-records"), event.count("deleted-records")
        operation = event.summary.get("operation", "unknown")
        if operation != "replace" and event.changed_records:
            taken = deleted + event.count("added-position-deletes")
            text = f"foreign rows: {operation} {event.snapshot_id} adds {added}, takes {taken}"
            findings.say("E6", text)
        # A compaction that applies position deletes leaves fewer rows: there only E1 can tell.
        deletes = event.count("total-delete-files") + event.count("removed-delete-files")
        if operation == "replace" and (added > deleted or (added < deleted and not deletes)):
            findings.say("E6", f"{event}: a compaction took {deleted} records and gave {added}")
