"""Find values to be erased in the name or reason of an erasure, which the table keeps."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

MIN_CHECKED_CHARACTERS = 4
"""Shorter key values may occur in a name or reason by chance, so they are not checked."""

_NUMBER = re.compile(r"[+-]?[0-9]+(?:[.][0-9]+)?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)

_TIME = re.compile(
    r"(?<![0-9])[0-9]{4}-?[0-9]{2}-?[0-9]{2}(?:[T ][0-9]{2}:?[0-9]{2}(?::?[0-9]{2}(?:[.][0-9]+)?)?"
    r"(?: ?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?))?)?(?![0-9])",
    re.ASCII,
)
_BETWEEN = r"[,.'\u2019/() \u00a0\u202f-]"
_GROUPED = re.compile(rf"[+(-]?[0-9](?:[0-9]|{_BETWEEN})*", re.ASCII)
"""Digits as people group them: 1,234,567 and +49 170 1234567."""
_CHAIN = re.compile(rf"[0-9]+(?:{_BETWEEN}{{1,3}}[0-9]+)*", re.ASCII)
_DIGITS = re.compile("[0-9]+", re.ASCII)
_MIN_GROUPED_DIGITS = 7
"""Fewer digits may be a month or a day."""
_UUID = re.compile(f"(?=({'-?'.join(f'[0-9A-Fa-f]{{{n}}}' for n in (8, 4, 4, 4, 12))}))")
"""A lookahead, so that a uuid is also found directly after other digits."""


def repeats_any(text: str, values: Iterable[str]) -> bool:
    """Return whether a text contains one of the values, as it is or in another form.

    What depends on the text alone is read once, since there may be very many values.
    """
    checked = {value for value in values if len(value) >= MIN_CHECKED_CHARACTERS}
    grouped = {"".join(_DIGITS.findall(value)) for value in checked if _GROUPED.fullmatch(value)}
    digits = {each for each in grouped if len(each) >= _MIN_GROUPED_DIGITS}
    plain = _fold_text(text)
    written = {each for _, each in _read_meanings(text)}
    return (
        bool(digits & _list_grouped(text, {*map(len, digits)}))
        or any(value in text or _has_word(plain, _fold_text(value)) for value in checked)
        or any(
            word == value and each in written
            for value in checked
            for word, each in _read_meanings(value)
        )
    )


def _fold_text(text: str) -> str:
    """Return a text without the difference of upper and lower case, and of Unicode's forms."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _list_grouped(text: str, lengths: set[int]) -> set[str]:
    """List the digits of each number of some lengths in a text, however they are grouped."""
    found, longest = set(), max(lengths, default=0)
    for chain in _CHAIN.findall(text):
        groups = _DIGITS.findall(chain)
        for start in range(len(groups)):
            joined = ""
            for end in range(start, len(groups)):
                joined += groups[end]
                if len(joined) > longest:
                    break
                if len(joined) in lengths:
                    found.add(joined)
    return found


def _has_word(text: str, word: str) -> bool:
    """Return whether a text contains a word that no letters or digits continue."""
    start = text.find(word)
    while start >= 0:
        around = text[max(start - 1, 0) : start] + text[start + len(word) :][:1]
        if not any(map(str.isalnum, around)):
            return True
        start = text.find(word, start + 1)
    return False


def _read_meanings(text: str) -> Iterator[tuple[str, Decimal | datetime | UUID]]:
    """Yield the numbers, times and uuids in a text: each is the same key however it is written.

    1234.5 is 1234.50, and 12:00Z is 14:00+02:00. A time without a zone is read as UTC.
    """
    for number in _NUMBER.findall(text):
        if len(number) >= MIN_CHECKED_CHARACTERS:
            yield number, Decimal(number)
    for time in _TIME.findall(text):
        with suppress(ValueError, OverflowError):  # no such time, or beyond the years 1 to 9999
            found = datetime.fromisoformat(time.replace(" ", "T", 1).replace(" ", ""))
            yield time, found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    for uuid in _UUID.findall(text):
        yield uuid, UUID(uuid)
