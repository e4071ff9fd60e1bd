"""Translate the next offset of a partition to its copy on another cluster; pure functions.

A record's fingerprint is a 64-bit hash of its timestamp, key and value, without its offset: a copy
has the same fingerprints in the same order, at other offsets. A translated offset needs evidence:
the last records read must be directly before it in the copy, and none of them after it
(docs/faults.md, D6).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from frazil.errors import NotMovableError
from frazil.ledger.coordinates import NO_OFFSETS, Offsets
from frazil.ledger.offsets import describe_partition
from frazil.messages import count_noun, name_field
from frazil.migration.messages import MovedPartition

Fingerprints = npt.NDArray[np.int64]
NO_FINGERPRINTS: Fingerprints = NO_OFFSETS

WANTED_RECORDS = 100
"""The number of records compared before and after an offset, if there are as many."""


@dataclass(frozen=True)
class KnownRecords:
    """The records of one partition around its next offset on the old cluster, oldest first.

    `before` are fingerprints of the last records read, `after` of the next ones, which only the old
    cluster has. `is_complete` is False if records that were read are missing in `before`.
    `min_timestamp_ms` is the lowest timestamp of all. `is_empty` is True if the old partition has
    no records at all.
    `timestamps_ms`, where only timestamps and keys are known, are the timestamps of `before`: if
    all are equal, the records cannot be distinguished from unread ones with the same timestamp.
    """

    before: Fingerprints
    after: Fingerprints
    source: str
    is_complete: bool = True
    min_timestamp_ms: int | None = None
    is_empty: bool = False
    timestamps_ms: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class CopiedRecords:
    """The records of one partition of the copy, from the lowest possible offset to the end.

    `is_whole` is True if these are all records that the partition has.
    """

    offsets: Offsets
    fingerprints: Fingerprints
    earliest: int
    end: int
    is_whole: bool


@dataclass(frozen=True)
class RecordPosition:
    """A partition with its next offset on the old cluster, and its stream."""

    stream: str
    topic: str
    partition: int
    old_next: int

    def __str__(self) -> str:
        """Return stream and partition, with which an error begins."""
        return f"stream {self.stream}: {describe_partition(self.topic, self.partition)}"


def fingerprint_record(timestamp_ms: int, key: bytes | None, value: bytes | None = b"") -> int:
    """Return a 64-bit hash of a record; null and empty differ. Omitted values count as empty."""
    parts = [timestamp_ms.to_bytes(8, "big", signed=True)]
    for part in (key, value):
        length = -1 if part is None else len(part)
        parts += [length.to_bytes(8, "big", signed=True), part or b""]
    digest = hashlib.blake2b(b"".join(parts), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def translate_offset(
    position: RecordPosition, known: KnownRecords, copy: CopiedRecords, given: int | None = None
) -> MovedPartition:
    """Translate one partition's next offset, or check that a given one contradicts no record.

    Raises:
        NotMovableError: no offset matches, several do, or records would be lost or read twice.
    """
    candidates = list(_list_candidates(known, copy))
    if given is not None:
        return _accept(position, given, _check_given(position, known, copy, candidates, given))
    if not len(known.before) and not len(known.after):
        return _translate_without_records(position, known, copy)
    if not known.is_complete:
        raise _fail(
            position, f"records that were read are missing ({known.source}): skipped or deleted"
        )
    if not candidates:
        raise _fail(
            position,
            f"the last records read ({len(known.before)}; {known.source}) are not found in this "
            f"order in {copy.earliest}-{copy.end} of the new cluster; the copy lacks some, has "
            "some twice, or sets timestamps of its own (message.timestamp.type)",
        )
    if len(candidates) > 1 or _has_read_records_after(known, copy, candidates[0]):
        offsets = ", ".join(str(_offset_at(copy, index)) for index in candidates[:5])
        raise _fail(
            position,
            f"{known.source} cannot tell records that were read from those that come next; "
            f"possible next offsets: {offsets}",
        )
    if _have_one_timestamp(known, copy, candidates[0]):
        raise _fail(
            position,
            f"all compared records before offset {_offset_at(copy, candidates[0])} "
            f"({known.source}) have one timestamp; unread records may have the same one",
        )
    return _accept(position, _offset_at(copy, candidates[0]), _describe(known, copy, candidates[0]))


def _list_candidates(known: KnownRecords, copy: CopiedRecords) -> Iterator[int]:
    """Return the indexes in the copy at which all compared fingerprints match on both sides."""
    before, after, fingerprints = known.before, known.after, copy.fingerprints
    if not known.is_complete:
        return
    indexes = {0} if copy.is_whole else set()
    if len(before):
        indexes |= set((np.flatnonzero(fingerprints == before[-1]) + 1).tolist())
    elif len(after):
        indexes |= set(np.flatnonzero(fingerprints == after[0]).tolist())
    for index in sorted(indexes):
        left, right = _count_comparable(known, copy, index)
        if not left + right or (left < len(before) and not copy.is_whole):
            continue
        matches_before = np.array_equal(
            fingerprints[index - left : index], before[len(before) - left :]
        )
        if matches_before and np.array_equal(fingerprints[index : index + right], after[:right]):
            yield index


def _count_comparable(known: KnownRecords, copy: CopiedRecords, index: int) -> tuple[int, int]:
    """Return how many records can be compared before and after an index."""
    return min(len(known.before), index), min(len(known.after), len(copy.fingerprints) - index)


def _has_read_records_after(known: KnownRecords, copy: CopiedRecords, index: int) -> bool:
    """Return whether records that were read may come again after an index.

    If the old cluster has the next records and they match, equal fingerprints are other records.
    """
    right = _count_comparable(known, copy, index)[1]
    return not right and bool(np.isin(copy.fingerprints[index:], known.before).any())


def _have_one_timestamp(known: KnownRecords, copy: CopiedRecords, index: int) -> bool:
    """Return whether all compared records have one timestamp, which is not sufficient evidence."""
    left = _count_comparable(known, copy, index)[0]
    return known.timestamps_ms is not None and len(set(known.timestamps_ms[-left:].tolist())) == 1


def _offset_at(copy: CopiedRecords, index: int) -> int:
    """Return the offset after the record before an index."""
    return int(copy.offsets[index - 1]) + 1 if index else copy.earliest


def _describe(known: KnownRecords, copy: CopiedRecords, index: int) -> str:
    """Describe the compared records, as evidence."""
    left, right = _count_comparable(known, copy, index)
    text = f"{count_noun(left, 'record')} before it match the last ones read ({known.source})"
    return text + (f", {right} after it match the next ones" if right else "")


def _translate_without_records(
    position: RecordPosition, known: KnownRecords, copy: CopiedRecords
) -> MovedPartition:
    """Translate an offset without records to compare: nothing was read, or both are empty."""
    if position.old_next == 0 and copy.earliest == 0:
        return _accept(position, 0, "nothing was read, and the copy begins at offset 0")
    if known.is_empty and copy.earliest == copy.end:
        return _accept(position, copy.end, "both partitions are empty")
    raise _fail(
        position,
        f"no records before offset {position.old_next} of the old cluster are known; the new one "
        f"has {copy.earliest}-{copy.end}",
    )


def _check_given(
    position: RecordPosition,
    known: KnownRecords,
    copy: CopiedRecords,
    candidates: list[int],
    given: int,
) -> str:
    """Check that a given offset contradicts no known record, and return the evidence."""
    if not copy.earliest <= given <= copy.end:
        raise _fail(
            position, f"offset {given} is outside {copy.earliest}-{copy.end} of the new cluster"
        )
    index = int(np.searchsorted(copy.offsets, given))
    if index in candidates:
        return f"given; {_describe(known, copy, index)}"
    following = copy.fingerprints[index : index + len(known.after)]
    repeated = int(np.isin(copy.fingerprints[index:], known.before).sum())
    if repeated and not (
        len(known.after) and np.array_equal(following, known.after[: len(following)])
    ):
        raise _fail(
            position,
            f"{count_noun(repeated, 'record')} from offset {given} on would be read twice "
            f"({known.source})",
        )
    has_common_records = bool(np.isin(copy.fingerprints, known.before).any())
    is_unread = bool(index) and not np.isin(copy.fingerprints[index - 1], known.before)
    if known.is_complete and has_common_records and is_unread:
        raise _fail(
            position,
            f"the record before offset {given} was not read and would be lost ({known.source})",
        )
    return "given; no record contradicts or confirms it"


def _accept(position: RecordPosition, new_next: int, evidence: str) -> MovedPartition:
    return MovedPartition(
        topic=position.topic,
        partition=position.partition,
        old_next=position.old_next,
        new_next=new_next,
        evidence=evidence,
    )


def _fail(position: RecordPosition, facts: str) -> NotMovableError:
    example = f"{position.topic}:{position.partition}:OFFSET"
    return NotMovableError(
        f"{position}: {facts}",
        "compare with the old cluster, if it still answers: `frazil move-cluster "
        f"{position.stream} --old-connection CONNECTION`; otherwise find the offset and give it: "
        f"{name_field('next')} {example}",
    )
