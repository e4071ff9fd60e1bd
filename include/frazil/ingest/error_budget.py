"""The error budget of a batch, by the stream's `errors.tolerance` (features A11)."""

from dataclasses import dataclass
from typing import Literal

from frazil.streams.models import Errors

Tolerance = Literal["none", "invalid_data", "all", "quarantine"]


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
    share = f"{bad} of {read} records are bad"
    if bad == 0 or errors.tolerance == "all":
        return None
    if errors.tolerance == "none":
        return f"{share}; errors.tolerance is none"
    if errors.tolerance == "invalid_data":
        rest = bad - records.invalid
        decoded = f"{rest} records decode and are bad for another reason"
        return f"{decoded}; tolerance is invalid_data" if rest else None
    if errors.max_bad_records is not None and bad > errors.max_bad_records:
        return f"{share}; errors.max_bad_records is {errors.max_bad_records}"
    if bad > errors.max_bad_ratio * read:
        return f"{share}; errors.max_bad_ratio is {errors.max_bad_ratio}"
    return None


def dispose(errors: Errors, records: BadRecords) -> Disposal:
    """Return what happens to the bad records of a batch that passes."""
    if errors.tolerance == "quarantine":
        return Disposal(quarantined=records.bad, skipped=0)
    return Disposal(quarantined=0, skipped=records.bad)
