"""What an erasure is asked for, what it would take, and how it ended; never a key's value."""

from typing import Literal

from pydantic import Field

from frazil.contracts import Message


class ErasureRequest(Message):
    """Keys as `column=value`, here or line by line in a file; who and why unless it is a dry run.

    This message holds personal data: it is read from the form or the command line, and never
    handed on.
    """

    stream: str
    keys: tuple[str, ...] = Field((), repr=False)
    keys_file: str | None = None
    by: str = ""
    reason: str = ""
    dry_run: bool = True


class ErasurePlan(Message):
    """What an erasure would take, as counts; the keys are not in it."""

    stream: str
    table: str
    by: str
    reason: str
    dry_run: bool
    rows: int
    letters: int
    text: str

    @property
    def is_last_word(self) -> bool:
        """Say that a dry run ends here."""
        return self.dry_run


class Erased(Message):
    """How an erasure ended; `snapshot_ids` are those of the stream's table."""

    stream: str
    table: str
    outcome: Literal["ERASED", "NOTHING"]
    rows: int
    letters: int
    snapshot_ids: tuple[int, ...]
    text: str
