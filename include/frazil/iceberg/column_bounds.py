"""Upper bounds of long texts in manifests, without the fault of PyIceberg's own.

A manifest holds the first 16 characters of a column's largest text, the last of them replaced by
the next character. PyIceberg adds 1 to the code point: after U+D7FF comes a surrogate, which has no
UTF-8, so that a file with such a text could not be described. Iceberg's Java library, like this
module, continues with U+E000.
"""

import sys

from pyiceberg.utils import truncate

_FUNCTION = "truncate_upper_bound_text_string"
_LAST_BEFORE_SURROGATES, _FIRST_AFTER_SURROGATES = 0xD7FF, 0xE000


def truncate_upper_bound(value: str, length: int | None) -> str | None:
    """Return the shortest text of at most `length` characters that is not below the value.

    None if there is none: each of the first characters is the last of Unicode.
    """
    start = value[:length]
    if start == value:
        return value
    kept = start.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    last = ord(kept[-1])
    following = _FIRST_AFTER_SURROGATES if last == _LAST_BEFORE_SURROGATES else last + 1
    return kept[:-1] + chr(following)


def correct_text_bounds() -> None:
    """Have PyIceberg's writer use `truncate_upper_bound`, whether it is imported yet or not."""
    for module in (truncate, sys.modules.get("pyiceberg.io.pyarrow")):
        if module is not None:
            setattr(module, _FUNCTION, truncate_upper_bound)
