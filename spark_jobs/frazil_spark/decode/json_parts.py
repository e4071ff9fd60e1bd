"""JSON objects as the texts of their fields: no number passes through a float.

This code travels to Spark's Python workers by value: it imports the standard library only.
"""

import json
import re
from typing import NamedTuple, NoReturn, TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | bool | None"
"""A JSON value; a number is a `Number`, which is its text."""
_BLANKS = re.compile(r"[ \t\r\n]*")


class Part(NamedTuple):
    """A field of an object: its text as it was sent, and its value."""

    text: str
    value: Json


class Number(str):
    """The text of a number."""

    __slots__ = ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


class _ExactDecoder(json.JSONDecoder):
    """A parser that keeps the texts of numbers; it is made anew in each worker."""

    def __init__(self) -> None:
        super().__init__(parse_float=Number, parse_int=Number, parse_constant=_refuse)

    def __reduce__(self) -> "tuple[type[_ExactDecoder], tuple[()]]":
        return _ExactDecoder, ()


_DECODER = _ExactDecoder()


def split_object(text: str) -> list[tuple[str, Part]]:
    """Split a JSON object into its fields, in order and with repeated names.

    Raises:
        ValueError: the text is no JSON object.
        RecursionError: it is nested too deeply.
    """
    return _split(text, "{}")


def split_list(text: str) -> list[Part]:
    """Split a JSON array into its elements.

    Raises:
        ValueError: the text is no JSON array.
        RecursionError: it is nested too deeply.
    """
    return [part for _, part in _split(text, "[]")]


def _split(text: str, brackets: str) -> list[tuple[str, Part]]:
    """Split an object, or an array, whose elements get empty names."""
    parts: list[tuple[str, Part]] = []
    position = _skip_sign(text, 0, brackets[0])
    if text[position : position + 1] == brackets[1]:
        position += 1
    else:
        while True:
            name, start = _read_name(text, position) if brackets == "{}" else ("", position)
            value, end = _DECODER.raw_decode(text, start)
            parts.append((name, Part(text[start:end], value)))
            position = _skip_blanks(text, end)
            if text[position : position + 1] == brackets[1]:
                position += 1
                break
            position = _skip_sign(text, position, ",")
    if _skip_blanks(text, position) != len(text):
        raise ValueError(position)
    return parts


def _read_name(text: str, position: int) -> tuple[str, int]:
    """Read a field's name; return it and the position of its value."""
    name, end = _DECODER.raw_decode(text, position)
    if type(name) is not str:
        raise ValueError(text[position:end])
    return name, _skip_sign(text, end, ":")


def _skip_blanks(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found else position


def _skip_sign(text: str, position: int, sign: str) -> int:
    """Return the position behind a sign and the blanks around it."""
    position = _skip_blanks(text, position)
    if text[position : position + 1] != sign:
        raise ValueError(position)
    return _skip_blanks(text, position + 1)
