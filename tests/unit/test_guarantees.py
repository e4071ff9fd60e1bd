"""The page of guarantees names tests that exist, and no case of the catalogue is forgotten."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
CATALOGUE = (PROJECT / "docs/faults.md").read_text()
PAGE, _, NOT_SHOWN = (PROJECT / "docs/guarantees.md").read_text().partition("\n## Not shown yet\n")
CASE = r"[A-J]-?\d+"
ROWS = [line.split(" | ") for line in PAGE.splitlines() if re.match(rf"\| {CASE} \|", line)]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def case_of(row: list[str]) -> str:
    """Name the case of a row."""
    return row[0].removeprefix("| ")


@cache
def list_tests(path: str) -> frozenset[str]:
    """List the test functions of a file without importing it."""
    body = ast.parse((PROJECT / path).read_text()).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef))


def test_every_case_of_the_catalogue_is_shown_or_listed_as_not_shown() -> None:
    cases = re.findall(rf"^\| ({CASE}) \|", CATALOGUE, re.MULTILINE)
    told = Counter([*map(case_of, ROWS), *re.findall(rf"\b{CASE}\b", NOT_SHOWN)])

    assert len(cases) == 112
    assert told == Counter(cases), "each case once, and no other"


@pytest.mark.parametrize("row", ROWS, ids=case_of)
def test_the_tests_of_a_case_exist(row: list[str]) -> None:
    _, injected, holds, tests = row
    named = TEST.findall(tests)

    assert injected.strip()
    assert holds.strip()
    assert named or "does not apply" in holds
    assert [test for path, test in named if test not in list_tests(path)] == []
    assert len(named) == tests.count("::"), "a test that is written in another form is not checked"
