"""Where a log goes on in its copy on another cluster, as pure functions of prints of records.

A print is a 64-bit hash of what a record is, without its offset: a copy has the same prints in the
same order, at other offsets. Nothing is guessed: what was read must stand right before the boundary
and nowhere behind it (docs/faults.md, D6).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from frazil.errors import NotMovableError
from frazil.ledger.coordinates import NO_OFFSETS, Offsets

Prints = npt.NDArray[np.int64]
NO_PRINTS: Prints = NO_OFFSETS

WANTED_RECORDS = 100
"""So many on each side of a boundary are compared, where there are as many."""


@dataclass(frozen=True)
class KnownRecord:
    """What is known of one partition around its recovery point, oldest first.

    `before` are prints of records that were read, `after` of those that come next, where the old
    cluster tells. Unless `is_complete`, some that were read are missing among `before`. `floor_ms`
    is the least timestamp of all of them. `is_empty` says that the old log holds nothing at all.
    Where only timestamps and keys are known, `instants_ms` are those timestamps: records of one
    instant alone may be read ones or others that come next.
    """

    before: Prints
    after: Prints
    source: str
    is_complete: bool = True
    floor_ms: int | None = None
    is_empty: bool = False
    instants_ms: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class CopiedRecord:
    """What the new cluster delivers of one partition, from where the boundary may lie to its end.

    `is_whole` says that nothing that the partition keeps lies before it.
    """

    offsets: Offsets
    prints: Prints
    earliest: int
    end: int
    is_whole: bool


@dataclass(frozen=True)
class TranslatedOffset:
    """One partition's next offset on both clusters, and what shows that they are one."""

    topic: str
    partition: int
    old_next: int
    new_next: int
    evidence: str


@dataclass(frozen=True)
class RecordPosition:
    """The partition that is translated, and how its stream is named in an error."""

    stream: str
    topic: str
    partition: int
    old_next: int

    def __str__(self) -> str:
        """Name it at the head of an error."""
        return f"stream {self.stream}: {self.topic}-{self.partition}"


def fingerprint_record(timestamp_ms: int, key: bytes | None, value: bytes | None = b"") -> int:
    """Hash a record; null and empty stay apart. Without values all are taken for empty."""
    parts = [timestamp_ms.to_bytes(8, "big", signed=True)]
    for part in (key, value):
        length = -1 if part is None else len(part)
        parts += [length.to_bytes(8, "big", signed=True), part or b""]
    digest = hashlib.blake2b(b"".join(parts), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def translate_offset(
    place: RecordPosition, known: KnownRecord, copy: CopiedRecord, given: int | None = None
) -> TranslatedOffset:
    """Translate one partition's next offset, or see that a given one contradicts nothing.

    Raises:
        NotMovableError: no place fits, several do, or the given one would lose or double records.
    """
    candidates = list(_list_candidates(known, copy))
    if given is not None:
        return _accept(place, given, _judge_given(place, known, copy, candidates, given))
    if not len(known.before) and not len(known.after):
        return _begin_without_records(place, known, copy)
    if not known.is_complete:
        raise _fail(place, f"{known.source} lacks records that were read: skipped, or deleted")
    if not candidates:
        raise _fail(
            place,
            f"the {len(known.before)} last records that were read ({known.source}) stand nowhere "
            f"in this order in [{copy.earliest}, {copy.end}) of the new cluster; it lacks some, "
            "has some twice, or stamps them itself (message.timestamp.type)",
        )
    if len(candidates) > 1 or _is_doubled(known, copy, candidates[0]):
        found = ", ".join(str(_offset_at(copy, index)) for index in candidates[:5])
        raise _fail(
            place,
            f"{known.source} cannot tell the records before the boundary from those behind it; it "
            f"may lie at {found}",
        )
    if _is_one_instant(known, copy, candidates[0]):
        raise _fail(
            place,
            f"all records before {_offset_at(copy, candidates[0])} that can be compared "
            f"({known.source}) have one timestamp: others that come next may have it, too",
        )
    return _accept(place, _offset_at(copy, candidates[0]), _describe(known, copy, candidates[0]))


def _list_candidates(known: KnownRecord, copy: CopiedRecord) -> Iterator[int]:
    """List the indexes before which the copy reads as the old log does before the boundary."""
    before, after, prints = known.before, known.after, copy.prints
    if not known.is_complete:
        return
    hits = {0} if copy.is_whole else set()
    if len(before):
        hits |= set((np.flatnonzero(prints == before[-1]) + 1).tolist())
    elif len(after):
        hits |= set(np.flatnonzero(prints == after[0]).tolist())
    for index in sorted(hits):
        left, right = _reach(known, copy, index)
        if not left + right or (left < len(before) and not copy.is_whole):
            continue
        same_left = np.array_equal(prints[index - left : index], before[len(before) - left :])
        if same_left and np.array_equal(prints[index : index + right], after[:right]):
            yield index


def _reach(known: KnownRecord, copy: CopiedRecord, index: int) -> tuple[int, int]:
    """Count the records that can be compared on both sides of an index."""
    return min(len(known.before), index), min(len(known.after), len(copy.prints) - index)


def _is_doubled(known: KnownRecord, copy: CopiedRecord, index: int) -> bool:
    """Say whether something that was read may come again behind an index.

    Where the old cluster shows what comes next, equal records there are others.
    """
    right = _reach(known, copy, index)[1]
    return not right and bool(np.isin(copy.prints[index:], known.before).any())


def _is_one_instant(known: KnownRecord, copy: CopiedRecord, index: int) -> bool:
    """Say whether what was compared would fit other records of the same instant as well.

    Two instants in a row come once in a log that is in the order of time.
    """
    left = _reach(known, copy, index)[0]
    return known.instants_ms is not None and len(set(known.instants_ms[-left:].tolist())) == 1


def _offset_at(copy: CopiedRecord, index: int) -> int:
    """Give the offset behind the record before an index."""
    return int(copy.offsets[index - 1]) + 1 if index else copy.earliest


def _describe(known: KnownRecord, copy: CopiedRecord, index: int) -> str:
    """Say what was compared."""
    left, right = _reach(known, copy, index)
    text = f"{left} records before it are the last ones read ({known.source})"
    return text + (f", {right} behind it are those that come next" if right else "")


def _begin_without_records(
    place: RecordPosition, known: KnownRecord, copy: CopiedRecord
) -> TranslatedOffset:
    """Decide where nothing can be compared: nothing was read, or neither log holds anything."""
    if place.old_next == 0 and copy.earliest == 0:
        return _accept(place, 0, "nothing was read, and nothing has left the copy")
    if known.is_empty and copy.earliest == copy.end:
        return _accept(place, copy.end, "both logs are empty there")
    raise _fail(
        place,
        f"no record is known before offset {place.old_next} of the old cluster; the new one keeps "
        f"[{copy.earliest}, {copy.end})",
    )


def _judge_given(
    place: RecordPosition, known: KnownRecord, copy: CopiedRecord, candidates: list[int], given: int
) -> str:
    """See that a person's offset contradicts nothing that is known; give the evidence."""
    if not copy.earliest <= given <= copy.end:
        raise _fail(
            place, f"offset {given} lies outside of [{copy.earliest}, {copy.end}), which it keeps"
        )
    index = int(np.searchsorted(copy.offsets, given))
    if index in candidates:
        return f"given; {_describe(known, copy, index)}"
    behind = copy.prints[index : index + len(known.after)]
    doubled = int(np.isin(copy.prints[index:], known.before).sum())
    if doubled and not (len(known.after) and np.array_equal(behind, known.after[: len(behind)])):
        raise _fail(
            place, f"{doubled} records at or behind offset {given} were read ({known.source})"
        )
    is_shared = bool(np.isin(copy.prints, known.before).any())
    is_strange = bool(index) and not np.isin(copy.prints[index - 1], known.before)
    if known.is_complete and is_shared and is_strange:
        raise _fail(
            place,
            f"the record before offset {given} was not read ({known.source}); it would be lost",
        )
    return "given; nothing contradicts it, and nothing proves it"


def _accept(place: RecordPosition, new_next: int, evidence: str) -> TranslatedOffset:
    return TranslatedOffset(place.topic, place.partition, place.old_next, new_next, evidence)


def _fail(place: RecordPosition, facts: str) -> NotMovableError:
    where = f"{place.topic}:{place.partition}:OFFSET"
    return NotMovableError(
        f"{place}: {facts}",
        f"`frazil move-cluster {place.stream} --old-connection CONNECTION` compares with the old "
        f"cluster where it still answers; else look the offset up and give it: --next {where}",
    )
