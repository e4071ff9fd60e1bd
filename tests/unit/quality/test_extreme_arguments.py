"""Extreme values for each argument of each expectation: a suite compiles, or is refused."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from frazil.errors import SuiteError
from frazil.quality.catalogue import CATALOGUE
from frazil.quality.compiler import compile_suite
from frazil.quality.suite_files import check_suite_fits, load_suite

COLUMNS = {
    "text": "string",
    "whole": "long",
    "real": "double",
    "price": "decimal(9,2)",
    "day": "date",
    "local": "timestamp",
    "at": "timestamptz",
    "yes": "boolean",
    "many": "list<string>",
}
NUMBERS = (
    0,
    -1,
    1.5,
    2**31,
    2**63,
    -(2**63) - 1,
    10**38,
    10**400,
    -(10**400),
    1e300,
    -1e300,
    1e-320,
)
TIMES = (
    *("0001-01-01", "9999-12-31", "2026-02-30", "0000-01-01"),
    *("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "2026-01-01T24:00:00"),
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00Z"),
)
PATTERNS = (
    "a{99999999999}",
    "(" * 3000 + ")" * 3000,
    "(?P<a>",
    "[[a]",
    "",
    "\\",
    "(?i)ß",
    "\\N{DIGIT}",
)
TEXTS = ("", "\x00", "x" * 70_000, "'; --", "\\", "\N{GRINNING FACE}")
EXTREMES = {
    "bound": (*NUMBERS, *TIMES),
    "number": NUMBERS,
    "whole": NUMBERS,
    "ratio": NUMBERS,
    "regex": PATTERNS,
    "regexes": tuple([each] for each in PATTERNS),
    "text": TEXTS,
    "texts": tuple([each] for each in TEXTS),
    "values": tuple([each] for each in (*NUMBERS, *TIMES, *TEXTS, None, True)),
    "pairs": tuple([[each, each]] for each in (*NUMBERS, *TIMES, *TEXTS)),
    "object": ({}, {"bins": NUMBERS, "weights": NUMBERS}, {"values": TEXTS, "weights": NUMBERS}),
    "quantiles": tuple({"quantiles": [n], "value_ranges": [[n, n]]} for n in NUMBERS),
    "json-schema": ({"maximum": 10**400}, {"pattern": PATTERNS[0]}, {"pattern": PATTERNS[1]}),
}
PLAIN: Mapping[str, object] = {
    "name": "text",
    "regex": "a",
    "regexes": ["a"],
    "text": "%Y",
    "texts": ["%Y"],
    "values": ["a"],
    "pairs": [["a", "a"]],
    "number": 1,
    "whole": 1,
    "bound": 1,
    "ratio": 0.5,
    "object": {"bins": [0, 1], "weights": [1]},
    "quantiles": {"quantiles": [0.5], "value_ranges": [[0, 1]]},
    "json-schema": {},
}


def list_arguments(expectation: str) -> Iterator[dict[str, object]]:
    """Yield arguments of which one is extreme, for each kind of column."""
    signature = CATALOGUE[expectation]
    plain = {
        n: PLAIN[signature.kinds[n]] for n in signature.required if signature.kinds[n] in PLAIN
    }
    plain |= {n: list(COLUMNS)[:2] for n in signature.required if signature.kinds[n] == "names"}
    pair = {n: "whole" for n in signature.required if n in ("column_A", "column_B")}
    for name, kind in signature.kinds.items():
        for value in EXTREMES.get(kind, ()):
            for column in COLUMNS if "column" in signature.required else ("text",):
                chosen = {"column": column} if "column" in signature.kinds else {}
                yield plain | pair | chosen | {name: value}


@pytest.mark.parametrize("expectation", CATALOGUE)
def test_extreme_arguments_compile_or_are_refused(tmp_path: Path, expectation: str) -> None:
    path = tmp_path / "suite.json"
    wrong = []
    for kwargs in list_arguments(expectation):
        entry = {"type": expectation, "kwargs": kwargs}
        path.write_text(json.dumps({"name": "suite", "expectations": [entry]}))
        try:
            suite = load_suite(path)
            check_suite_fits(suite, COLUMNS)
            compile_suite(suite, COLUMNS)
        except SuiteError:
            pass
        except Exception as error:  # noqa: BLE001 - which one it is is the result
            wrong.append(f"{type(error).__name__}: {error}: {kwargs}"[:200])
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"name": "\\ud800", "expectations": []}', "surrogates not allowed"),
    ],
)
def test_a_file_that_no_suite_can_be_read_from_is_refused(
    tmp_path: Path, text: str, facts: str
) -> None:
    path = tmp_path / "suite.json"
    path.write_text(text)

    with pytest.raises(SuiteError, match=facts):
        load_suite(path)
