"""The auditor's comparison of rows and dead letters with what Kafka delivers (E1)."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from faults.audit_tables import add_held
from faults.audit_values import (
    NOTHING_HELD,
    SHOWN_COORDINATES,
    TAKING,
    Event,
    Finding,
    Findings,
    Generation,
    Held,
    History,
    Letters,
    Offsets,
    Partition,
    PartitionLog,
    Range,
    Restart,
    Span,
    State,
    shown_coordinates,
)


def paint(offsets: Offsets, spans: Iterable[Span]) -> Offsets:
    """Return for each offset the index of the last span that covers it, -1 for none."""
    owners = np.full(len(offsets), -1, np.int64)
    for span in spans:
        low, high = np.searchsorted(offsets, [span.start, span.end])
        owners[low:high] = span.owner
    return owners


def list_restarts(before: State, event: Event, index: int) -> dict[Partition, Restart]:
    """List the partitions whose offsets mean other records from this event on.

    So it is after a move to another cluster, and after a gap that answers a topic that was created
    again (another id) or a log that was cut (the offsets go back).
    """
    after = event.state
    if after is None or event.kind not in ("gap", "move"):
        return {}
    restarts: dict[Partition, Restart] = {}
    for partition in {*before.offsets, *after.offsets}:
        ids = (before.topic_ids.get(partition[0]), after.topic_ids.get(partition[0]))
        end = after.offsets.get(partition, 0)
        if event.kind == "move" or ids[0] != ids[1]:
            restarts[partition] = Restart(index, 0)
        elif end < before.offsets.get(partition, 0):
            restarts[partition] = Restart(index, end)
    return restarts


def cut_log(log: PartitionLog | None, restarts: Iterable[Restart]) -> PartitionLog | None:
    """Return what the log still has in common with the one that was read before the restarts."""
    cut = min((restart.cut for restart in restarts), default=None)
    if log is None or cut is None:
        return log
    return log._replace(end=cut, offsets=log.offsets[log.offsets < cut])


def find_strays(held: Held, spans: Iterable[Span], labels: Mapping[int, int]) -> Offsets:
    """Return offsets whose label is an event's, but which lie in none of that event's spans.

    `labels` maps the index of an event to its label.
    """
    is_inside = np.zeros(len(held.offsets), np.bool_)
    for span in spans:
        if span.owner in labels:
            low, high = np.searchsorted(held.offsets, [span.start, span.end])
            is_inside[low:high] |= held.labels[low:high] == labels[span.owner]
    return held.offsets[np.isin(held.labels, list(labels.values())) & ~is_inside]


class Delivery:
    """The check of E1 over all partitions; numbers are kept by index into the history's events."""

    def __init__(self, history: History, letters: Letters, findings: Findings) -> None:
        """Arrange what the ancestry published by partition."""
        self.events, self.letters, self.findings = history.events, letters, findings
        self.spans: defaultdict[Partition, list[Span]] = defaultdict(list)
        self.lost: defaultdict[Partition, list[Span]] = defaultdict(list)
        self.overlaid: set[int] = set()
        self.rows: Counter[int] = Counter()
        self.redriven: Counter[int] = Counter()
        self.delivered: Counter[int] = Counter()
        self.unheld: set[int] = set()
        self.missing: defaultdict[int, list[tuple[Partition, Offsets]]] = defaultdict(list)
        self.counting = 0
        self.appended = {
            index: event.snapshot_id
            for index, event in enumerate(self.events)
            if event.kind == "ingest" and not event.is_seal
        }
        self.restarts: defaultdict[Partition, list[Restart]] = defaultdict(list)
        before = State(0, "", {}, {})
        for index, event in enumerate(self.events):
            for partition, restart in list_restarts(before, event, index).items():
                self.restarts[partition].append(restart)
                kept = [span for span in self.lost[partition] if span.start < restart.cut]
                self.lost[partition] = [s._replace(end=min(s.end, restart.cut)) for s in kept]
            for moved in event.ranges:
                self.add_range(index, moved)
            if event.kind == "adopt" and event.state:
                for partition, end in event.state.offsets.items():
                    self.spans[partition].append(Span(before.offsets.get(partition, 0), end, index))
            # One that answers a rollback, by its epoch, may leave out what Kafka still has.
            if event.kind == "gap" and event.state and event.state.epoch == before.epoch + 1:
                for gone in event.lost:
                    self.lost[gone.partition].append(Span(gone.start, gone.end, index))
            before = event.state or before

    def add_range(self, index: int, moved: Range) -> None:
        """Note a published range, and whose ranges a replay overlays; a backfill never does."""
        spans, event = self.spans[moved.partition], self.events[index]
        last = max((restart.index for restart in self.restarts[moved.partition]), default=-1)
        hit = [
            span.owner
            for span in spans
            if span.owner > last and span.start < moved.end and moved.start < span.end
        ]
        if event.kind == "replay":
            self.overlaid.update(hit)
        elif event.kind == "backfill" and hit:
            text = f"{event}: {moved} was published before, by {self.events[hit[0]]}"
            self.findings.say("E2", text)
        spans.append(Span(moved.start, moved.end, index))

    def audit_partition(self, partition: Partition, rows: Held, log: PartitionLog | None) -> None:
        """Compare one partition's rows and counting letters with its ranges and its log.

        What was read from each log is judged apart: of an earlier one there is only what the last
        one has in common with it.
        """
        spans = self.spans[partition]
        strays = find_strays(rows, spans, self.appended)
        self.findings.show("E4", "rows came with a snapshot of other ranges", partition, strays)
        generations = self.split_generations(partition, rows)
        if log is not None:
            there = np.setdiff1d(log.offsets, generations[-1].rows.offsets)
            there = there[paint(there, self.lost[partition]) >= 0]
            text = "records recorded as lost that Kafka still delivers"
            self.findings.show("E1", text, partition, there)
        for number, own in enumerate(generations):
            own_log = cut_log(log, self.restarts[partition][number:])
            if own_log is not log:
                end = own_log.end if own_log else 0
                self.unheld.update(span.owner for span in own.spans if span.end > end)
            self.audit_generation(partition, own, own_log)

    def list_starts(self, partition: Partition) -> list[int]:
        """List where the ranges start that were read from today's log."""
        last = max((restart.index for restart in self.restarts[partition]), default=-1)
        return [span.start for span in self.spans[partition] if span.owner > last]

    def split_generations(self, partition: Partition, rows: Held) -> list[Generation]:
        """Return what was read from each log, oldest first.

        Files say it, until a compaction: then the newest log that can have had a row's record is
        it, and what is left is the oldest one's.
        """
        bounds = [-1, *(each.index for each in self.restarts[partition]), len(self.events)]
        split: list[Generation] = []
        for low, high in reversed(list(itertools.pairwise(bounds))):
            spans = [span for span in self.spans[partition] if low < span.owner < high]
            letters = self.counting_letters(partition, spans)
            if low == -1:
                return [Generation(spans, letters, rows), *reversed(split)]
            own = [label for index, label in self.appended.items() if low < index < high]
            is_own = np.isin(rows.labels, own)
            is_free = ~np.isin(rows.labels, list(self.appended.values()))
            is_free &= (paint(rows.offsets, spans) >= 0) & ~np.isin(
                rows.offsets, np.concatenate([rows.offsets[is_own], letters])
            )
            free = np.flatnonzero(is_free)
            taken = is_own.copy()
            taken[free[np.unique(rows.offsets[free], return_index=True)[1]]] = True
            own_rows = Held(rows.offsets[taken], rows.labels[taken])
            split.append(Generation(spans, letters, own_rows))
            rows = Held(rows.offsets[~taken], rows.labels[~taken])
        return split

    def audit_generation(
        self, partition: Partition, own: Generation, log: PartitionLog | None
    ) -> None:
        """Compare what was read from one log."""
        spans, letters, rows = own
        gone = self.find_gone(partition, spans, rows)
        self.counting += len(np.setdiff1d(letters, gone))
        text = "records deleted on purpose but still there"
        self.findings.show("E1", text, partition, np.intersect1d(rows.offsets, gone))
        absent = gone[~np.isin(gone, np.concatenate([rows.offsets, letters]))]
        rows = add_held(rows, absent, -1)
        owners = paint(rows.offsets, spans)
        self.rows.update(owners.tolist())
        top = max((span.end for span in spans), default=0)
        outside = rows.offsets[owners < 0]
        above, below = outside[outside >= top], outside[outside < top]
        self.findings.show("E1", f"rows above every published range ({top})", partition, above)
        self.findings.show("E1", "rows outside every published range", partition, below)
        present, times = np.unique(np.concatenate([rows.offsets, letters]), return_counts=True)
        text = "records more than once in table and counting dead letters"
        self.findings.show("E1", text, partition, present[times > 1])
        if log is not None:
            self.audit_log(partition, spans, present, log)

    def find_gone(self, partition: Partition, own: list[Span], rows: Held) -> Offsets:
        """Return what left on purpose and did not come back: by a batch, or if too old a replay.

        Where two logs had a record at an offset, the one that is there has not left.
        """
        found = [np.empty(0, np.int64)]
        others = [span for span in self.spans[partition] if span not in own]
        for index, event in enumerate(self.events):
            if event.kind in TAKING:
                letters = [
                    held[partition] for held in event.gone_letters.values() if partition in held
                ]
                listed = np.unique(np.concatenate([event.gone.get(partition, found[0]), *letters]))
                is_final = event.kind != "expire-rows"
                again = ("ingest",) if is_final else ("ingest", "replay", "backfill")
                later = [s for s in own if s.owner > index and self.events[s.owner].kind in again]
                listed = listed[paint(listed, later) < 0]
                is_unsure = paint(listed, others) >= 0
                is_own = (paint(listed, own) >= 0) | ~is_unsure
                is_there = is_unsure & np.isin(listed, rows.offsets)
                found.append(listed[is_own & ~is_there])
        return np.unique(np.concatenate(found))

    def counting_letters(self, partition: Partition, own_spans: list[Span]) -> Offsets:
        """Return the letters of one log that count (the protocol's 'Dead letters').

        A letter counts iff its attempt is the last on the ancestry that covers its coordinate, and
        no redrive above that lists the coordinate. A redrive takes letters of the last batches
        before it, or before the end of an earlier log that it names.
        """
        letters = self.letters.held.get(partition, NOTHING_HELD)
        is_adopted = {index for index, event in enumerate(self.events) if event.kind == "adopt"}
        spans = [span for span in own_spans if span.owner not in is_adopted]
        codes = self.attempt_codes()
        mine = {span.owner for span in spans}
        named = {i: code for i, code in codes.items() if code >= 0 and i in mine}
        strays = find_strays(letters, spans, named)
        self.findings.show("E1", "letters outside their attempt's ranges", partition, strays)
        redriven = np.full(len(letters.offsets), -1, np.int64)
        for index, event in enumerate(self.events):
            if partition in event.taken:
                taken, before = event.taken[partition], self.find_bound(index)
                known = [span for span in self.spans[partition] if span.owner < before]
                owners = paint(taken, [span for span in known if span.owner not in is_adopted])
                is_own = np.isin(owners, list(mine))
                redriven[np.isin(letters.offsets, taken[is_own])] = index
                self.redriven.update(owners[is_own].tolist())
        last = paint(letters.offsets, spans)
        own = np.array([codes.get(index, -1) for index in range(len(self.events))] + [-1])
        is_counting: npt.NDArray[np.bool_] = (own[last] == letters.labels) & (redriven < last)
        return letters.offsets[is_counting]

    def find_bound(self, index: int) -> int:
        """Return the event before which a redrive's letters were read: itself, or a log's end."""
        named = self.events[index].summary.get("frazil.letters-before")
        ends = (i for i, event in enumerate(self.events) if str(event.snapshot_id) == named)
        return index if named is None else next(ends, -1)

    def attempt_codes(self) -> dict[int, int]:
        """Return the letters' label of each event that publishes ranges, -1 where none has it."""
        codes = {attempt: code for code, attempt in enumerate(self.letters.attempts)}
        return {
            index: codes.get(event.summary.get("frazil.attempt", ""), -1)
            for index, event in enumerate(self.events)
            if event.ranges
        }

    def audit_log(
        self, partition: Partition, spans: list[Span], present: Offsets, log: PartitionLog
    ) -> None:
        """Compare what exists of a partition with what Kafka delivers of it."""
        is_aged = [span.owner for span in spans if span.start < log.earliest or log.is_compacted]
        self.unheld.update(is_aged)
        owners = paint(log.offsets, spans)
        self.delivered.update(owners.tolist())
        is_missing = (owners >= 0) & ~np.isin(log.offsets, present)
        for index in np.unique(owners[is_missing]).tolist():
            self.missing[index].append((partition, log.offsets[is_missing & (owners == index)]))
        phantom = present[(present >= log.earliest) & ~np.isin(present, log.offsets)]
        if self.restarts[partition]:
            phantom = phantom[(paint(phantom, spans) >= 0) & (phantom < log.end)]
        if not log.is_compacted:
            self.findings.show(
                "E1", "rows or letters that Kafka does not deliver", partition, phantom
            )

    def audit_totals(self) -> None:
        """Compare each snapshot's counts with what exists and what Kafka delivers of its ranges.

        After a compaction a row of an old log stands for a record that the new one skipped at its
        offset: then what is unlike in one batch is made up for in another.
        """
        unlike: dict[int, int] = {}
        shared: set[int] = set()
        pool = 0
        for index, event in enumerate(self.events):
            if not event.ranges:
                continue
            absent, skipped = self.missing[index], event.count("frazil.rows-skipped")
            if (lost := sum(len(offsets) for _, offsets in absent)) > skipped:
                text = (
                    f"{event}: {lost} delivered records are neither in the table nor dead letters"
                )
                some = tuple(
                    c for name, offsets in absent for c in shown_coordinates(name, offsets)
                )
                shown = some[:SHOWN_COORDINATES]
                self.findings.append(Finding("E1", f"{text}; {skipped} were skipped", shown))
            read, delivered = event.count("frazil.rows-read"), self.delivered[index]
            if event.kind == "replay" or index in self.overlaid:
                continue
            if index not in self.unheld and read != delivered:
                text = f"{event}: read {read} records, Kafka delivers {delivered} in its ranges"
                self.findings.say("E3", text)
            is_shared = any(self.restarts[moved.partition] for moved in event.ranges)
            if index in self.unheld:
                written = event.count("frazil.rows-written") + self.redriven[index]
                unlike[index] = self.rows[index] - written
                pool += unlike[index] if is_shared else 0
                shared |= {index} if is_shared else set()
            elif is_shared:
                pool += skipped - min(lost, skipped)
        for index, more in unlike.items():
            if more and (pool or index not in shared):
                exist, event = self.rows[index], self.events[index]
                text = f"{event}: {exist} rows exist in its ranges, it wrote {exist - more}"
                self.findings.say("E1", text)

    def audit_quarantined(self) -> None:
        """Compare each attempt's letters with its rows-quarantined."""
        held: Counter[int] = Counter()
        for letters in self.letters.held.values():
            held.update(np.unique(np.stack(letters), axis=1)[1].tolist())
        for index, code in self.attempt_codes().items():
            event = self.events[index]
            if (said := event.count("frazil.rows-quarantined")) != held[code]:
                text = (
                    f"{event}: quarantined {said} records, its attempt holds {held[code]} letters"
                )
                self.findings.say("E3", text)
