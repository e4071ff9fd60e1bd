"""Decide whether a key that differs from its source is wrong or in motion; pure functions.

Positions are those of PostgreSQL's log (LSN). In each pass the state is read first, then the
source, each at one snapshot: so the state is never newer than the source, unless that is a standby.
A state whose position has passed an LSN has folded every transaction that was committed up to it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from frazil.ledger.coordinates import Partition
from frazil.state_tables.source_values import DIGEST_BYTES

MOST_SUSPECTS = 100_000
"""How many keys are compared again; their keys and digests are held in memory."""
LEAST_STILL_SECONDS = 10.0
"""How long a connector that runs may take to send a change; Debezium asks every half second."""

Finding = Literal["missing", "extra", "different"]
Verdict = Literal["equal", "missing", "extra", "different", "in_motion", "behind"]
_Digests: TypeAlias = "npt.NDArray[np.bytes_]"


class Row(NamedTuple):
    """A row of either side: digests of its key and its values, and what names its version.

    The version is the transaction of a source row, and the Kafka coordinate of a state row. `parts`
    are digests of single values, of rows that are compared again.
    """

    key: bytes
    row: bytes
    version: int
    parts: tuple[bytes, ...] = ()


class RowPair(NamedTuple):
    """Both sides of a key at one time; None is no row."""

    source: Row | None
    state: Row | None

    @property
    def is_equal(self) -> bool:
        """Return whether both sides have the same values, or no row."""
        if self.source is None or self.state is None:
            return self.source is self.state
        return self.source.row == self.state.row

    @property
    def finding(self) -> Finding:
        """Return what is wrong with a key that is not equal."""
        if self.state is None:
            return "missing"
        return "extra" if self.source is None else "different"


class Reading(NamedTuple):
    """When both sides were read: the source's LSN, and the position that the state had reached.

    The position is None if no row has one; `at` are seconds of a monotonic clock.
    """

    lsn: int
    position: int | None
    at: float


@dataclass(frozen=True)
class Suspect:
    """A key that differed in each pass so far; each side has not changed since a reading."""

    pair: RowPair
    source_since: Reading
    state_since: Reading
    has_moved: bool = False

    def compare_again(self, pair: RowPair, now: Reading) -> "Suspect":
        """Return the suspect after another pass."""
        same_source = _is_same(self.pair.source, pair.source)
        same_state = _is_same(self.pair.state, pair.state)
        return Suspect(
            pair,
            self.source_since if same_source else now,
            self.state_since if same_state else now,
            self.has_moved or not (same_source and same_state),
        )

    @property
    def since(self) -> Reading:
        """Return the reading since which neither side changed."""
        return max(self.source_since, self.state_since, key=lambda reading: reading.at)


def _is_same(before: Row | None, now: Row | None) -> bool:
    if before is None or now is None:
        return before is now
    return (before.row, before.version) == (now.row, now.version)


def is_proven(suspect: Suspect, now: Reading) -> bool:
    """Return whether the state has passed the LSN at which the source already had its row.

    The source row's transaction, or the state row's coordinate where the source has none, is the
    same at both ends: nothing happened to the key in between that a reader could have missed.
    """
    if now.position is None or is_ahead(now):
        return False
    return suspect.since.at < now.at and now.position >= suspect.since.lsn


def is_ahead(reading: Reading) -> bool:
    """Return whether the state is newer than the source: that is a standby, or another server."""
    return reading.position is not None and reading.position > reading.lsn


def judge(suspect: Suspect, now: Reading, *, waiting: bool) -> Verdict:
    """Decide about a key after the last pass; `waiting`: changes may not have arrived yet."""
    if suspect.pair.is_equal:
        return "equal"
    if is_proven(suspect, now):
        return suspect.pair.finding
    if not waiting and now.at - suspect.since.at >= LEAST_STILL_SECONDS:
        return suspect.pair.finding
    return "in_motion" if suspect.has_moved else "behind"


@dataclass
class FirstPass:
    """The digests of all state rows, with which the rows of the source are compared in batches.

    It holds about 41 bytes for each row of the state, and the differing keys up to a limit.
    `repeated` are the rows of the source with the key of another row.
    """

    _keys: _Digests
    _rows: _Digests
    _versions: npt.NDArray[np.int64]
    _is_met: npt.NDArray[np.bool_]
    duplicates: int
    source_rows: int = 0
    repeated: int = 0
    equal: int = 0
    unchecked: int = 0
    suspects: dict[bytes, RowPair] = field(default_factory=dict)

    @classmethod
    def read(cls, rows: Iterable[list[Row]]) -> "FirstPass":
        """Read the state; rows with the key of another row are counted, and left out."""
        parts = [_pack(batch) for batch in rows if batch]
        keys, values, versions = (
            np.concatenate(column) for column in zip(*(parts or [_pack([])]), strict=True)
        )
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        is_first = np.ones(len(keys), dtype=np.bool_)
        is_first[1:] = keys[1:] != keys[:-1]
        keep = order[is_first]
        return cls(
            keys[is_first],
            values[keep],
            versions[keep],
            np.zeros(len(keep), dtype=np.bool_),
            duplicates=int(len(keys) - is_first.sum()),
        )

    @property
    def state_rows(self) -> int:
        """Return the number of rows of the state, each key once."""
        return len(self._keys)

    def meet(self, batch: list[Row]) -> list[int]:
        """Compare rows of the source with the state; return the indexes of new suspects."""
        if not batch:
            return []
        self.source_rows += len(batch)
        keys, rows, _ = _pack(batch)
        places = np.searchsorted(self._keys, keys)
        inside = np.minimum(places, max(len(self._keys) - 1, 0))
        is_known = (places < len(self._keys)) & _equals(self._keys, inside, keys)
        known, counts = np.unique(inside[is_known], return_counts=True)
        self.repeated += int((counts - 1).sum() + self._is_met[known].sum())
        self._is_met[known] = True
        is_equal = is_known & _equals(self._rows, inside, rows)
        self.equal += int(is_equal.sum())
        found = []
        for index in np.flatnonzero(~is_equal).tolist():
            place = int(inside[index])
            state = self._state_row(place) if is_known[index] else None
            if self._suspect(batch[index].key, RowPair(batch[index], state)):
                found.append(index)
        return found

    def end(self) -> None:
        """Add the rows of the state that the source lacks to the suspects."""
        for place in np.flatnonzero(~self._is_met).tolist():
            state = self._state_row(place)
            self._suspect(state.key, RowPair(None, state))

    def _state_row(self, place: int) -> Row:
        key, row = (
            bytes(column[place]).ljust(DIGEST_BYTES, b"\0") for column in (self._keys, self._rows)
        )
        return Row(key, row, int(self._versions[place]))

    def _suspect(self, key: bytes, pair: RowPair) -> bool:
        if key in self.suspects:
            self.repeated += pair.state is None
            return False
        if len(self.suspects) >= MOST_SUSPECTS:
            self.unchecked += 1
            return False
        self.suspects[key] = pair
        return True


def _pack(batch: list[Row]) -> tuple[_Digests, _Digests, npt.NDArray[np.int64]]:
    kind = f"S{DIGEST_BYTES}"
    keys = np.array([each.key for each in batch], dtype=kind)
    rows = np.array([each.row for each in batch], dtype=kind)
    return keys, rows, np.array([each.version for each in batch], dtype=np.int64)


def _equals(
    column: _Digests, places: npt.NDArray[np.intp], given: _Digests
) -> npt.NDArray[np.bool_]:
    if not len(column):
        return np.zeros(len(given), dtype=np.bool_)
    return np.asarray(column[places] == given, dtype=np.bool_)


def find_differing_parts(pair: RowPair) -> Iterator[int]:
    """Yield the indexes of the values that differ, of a key that has a row on both sides."""
    if pair.source is not None and pair.state is not None:
        pairs = zip(pair.source.parts, pair.state.parts, strict=True)
        yield from (index for index, (ours, theirs) in enumerate(pairs) if ours != theirs)


def find_position(newest: Mapping[Partition, int | None]) -> int | None:
    """Return the LSN that a state has reached, given the newest of each of Kafka's partitions.

    A partition that has read no streamed change, only rows of a connector's snapshot, has none.
    """
    found = [lsn for lsn in newest.values() if lsn is not None]
    return min(found) if found and len(found) == len(newest) else None


def format_lsn(lsn: int) -> str:
    """Return an LSN as PostgreSQL prints it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Return an LSN as a number, as Debezium sends it."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
