"""The error budget of a batch, by the stream's `errors.tolerance`."""

from dataclasses import dataclass
from typing import Literal

from frazil.ingest.messages import StageResult
from frazil.messages import count_noun
from frazil.streams.models import Errors, Stream
from frazil.streams.routes import count_own_records

Tolerance = Literal["none", "invalid_data", "all", "quarantine"]


FEWEST_BAD = 2
"""The fewest bad records that can exceed a ratio above 0: a single one never does."""


@dataclass(frozen=True)
class BadRecords:
    """Counts of records; `invalid` are empty or not decodable, `quarantined` by schema review."""

    read: int
    bad: int
    invalid: int
    quarantined: int = 0


@dataclass(frozen=True)
class Disposal:
    """Numbers of bad records that become dead letters, and that are only counted."""

    quarantined: int
    skipped: int


def explain_excess(errors: Errors, records: BadRecords) -> str | None:
    """Return why the bad records stop the batch; None if they do not."""
    # Records that schema review quarantined are not errors.
    bad, read = records.bad - records.quarantined, records.read - records.quarantined
    share = f"{bad:,} of {count_noun(read, 'record')} {'is' if bad == 1 else 'are'} bad"
    if bad == 0 or errors.tolerance == "all":
        return None
    if errors.tolerance == "none":
        return f"{share}; errors.tolerance is none"
    if errors.tolerance == "invalid_data":
        rest = bad - records.invalid
        other = f"{count_noun(rest, 'record')} {'is' if rest == 1 else 'are'} bad for other reasons"
        return f"{other}; errors.tolerance is invalid_data" if rest else None
    if errors.max_bad_records is not None and bad > errors.max_bad_records:
        return f"{share}; errors.max_bad_records is {errors.max_bad_records}"
    allowed = errors.max_bad_ratio * read
    if bad > (max(allowed, FEWEST_BAD - 1) if allowed else 0):
        return f"{share}; errors.max_bad_ratio is {errors.max_bad_ratio}"
    return None


def explain_truncates(truncates: int) -> str:
    """Return why events of a truncated source table stop the batch."""
    events = count_noun(truncates, "event says", "events say")
    return f"{events} that the source table was truncated, and value.truncate is refuse"


def dispose(errors: Errors, records: BadRecords) -> Disposal:
    """Return what happens to the bad records of a batch that passes."""
    if errors.tolerance == "quarantine":
        return Disposal(quarantined=records.bad, skipped=0)
    return Disposal(quarantined=0, skipped=records.bad)


def count_bad_records(stream: Stream, result: StageResult) -> BadRecords:
    """Return the counts that the error budget refers to."""
    bad = result.rows_read - result.rows_good - result.rows_routed_elsewhere
    own = count_own_records(stream.route, result.rows_read, result.rows_routed_elsewhere)
    return BadRecords(own, bad, result.rows_invalid, result.rows_quarantined_by_review)


def has_dead_letters(errors: Errors, records: BadRecords, *, waived: bool) -> bool:
    """Return whether to write dead letters: only if the batch may pass its error budget."""
    allowed = waived or explain_excess(errors, records) is None
    return allowed and dispose(errors, records).quarantined > 0
