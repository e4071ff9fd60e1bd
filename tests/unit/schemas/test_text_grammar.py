"""docs/types.md shows the forms of texts that the code accepts."""

import re
from pathlib import Path

from frazil.schemas.text_grammar import FORMS

PAGE = (Path(__file__).parents[3] / "docs" / "types.md").read_text()
ROW = re.compile(r"\| `(\w+)[^|]*\| [^|]*text \| (.*) \|")
CODE = re.compile("`([^`]+)`")


def test_the_page_shows_the_form_of_each_type() -> None:
    shown = {kind: CODE.findall(form) for kind, form in ROW.findall(PAGE)}

    (date,), (_, clock) = shown["date"], shown["timestamp"]
    assert FORMS["date"] == f"(?!0000){date}"  # the years 0001 to 9999, as the page says below
    assert FORMS["timestamp"] == f"{FORMS['date']}[T ]{clock}"
    with_seconds = FORMS["timestamp"].removesuffix(")?").replace("(:[0-9]{2}", ":[0-9]{2}", 1)
    utc, offset = shown["timestamptz"]
    assert FORMS["timestamptz"] == f"{with_seconds}({utc}|{offset})"
    assert [FORMS["uuid"]] == shown["uuid"]
    assert [FORMS["decimal"]] == shown["decimal"]
    assert FORMS.keys() <= shown.keys()
