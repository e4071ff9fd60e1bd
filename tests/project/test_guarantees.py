"""The page of guarantees names tests that exist, and no case of the catalogue is forgotten."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from faults.cases import name_cases, read_inputs, summarize, summarize_kills

PROJECT = Path(__file__).parents[2]
CATALOGUE = (PROJECT / "docs/faults.md").read_text()
PAGE, _, NOT_SHOWN = (PROJECT / "docs/guarantees.md").read_text().partition("\n## Not shown yet\n")
CASE = r"[A-L]-?\d+"
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

    assert f"\n{len(cases)} failures. " in CATALOGUE
    assert f" has {len(cases)} cases. " in PAGE
    assert told == Counter(cases), "each case once, and no other"


def test_an_input_of_a_case_is_one_readable_line() -> None:
    inputs = read_inputs(PAGE)

    assert sorted(inputs) == sorted(map(case_of, ROWS))
    assert [(case, line) for case, each in inputs.items() for line in each if len(line) > 140] == []


@pytest.mark.parametrize("row", ROWS, ids=case_of)
def test_the_tests_of_a_case_exist(row: list[str]) -> None:
    _, injected, holds, tests = row
    named = TEST.findall(tests)

    assert injected.strip()
    assert holds.strip()
    assert named or "does not apply" in holds
    assert [test for path, test in named if test not in list_tests(path)] == []
    assert len(named) == tests.count("::"), "a test that is written in another form is not checked"


def test_every_test_that_the_page_names_exists() -> None:
    assert [test for path, test in TEST.findall(PAGE) if test not in list_tests(path)] == []


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "tests/faults").glob("test_*.py")), ids=lambda path: path.stem
)
def test_a_test_that_is_named_by_a_case_stands_in_its_row(path: Path) -> None:
    place = str(path.relative_to(PROJECT))
    rows = {case_of(row): row[3] for row in ROWS}
    named = {(case, test) for test in list_tests(place) for case in name_cases(f"{place}::{test}")}

    assert [pair for pair in named if f"`{place}::{pair[1]}`" not in rows.get(pair[0], "")] == []


def test_a_case_of_the_catalogue_has_a_test_that_is_named_by_it() -> None:
    shown = {case_of(row): TEST.findall(row[3]) for row in ROWS}
    wanted = {case: named for case, named in shown.items() if named and case[0] in "ABCDFIJ"}
    nameless = [
        case
        for case, named in wanted.items()
        if not any(case in name_cases(f"{path}::{test}") for path, test in named)
    ]

    assert nameless == []


def test_a_run_of_the_catalogue_is_told_case_by_case() -> None:
    page = "| D10 | `x`; also y | b | `tests/unit/test_x.py::test_one` |\n| I-2 | a | b | none |"
    outcomes = {
        "tests/unit/test_x.py::test_one[a]": "passed",
        "tests/unit/test_x.py::test_one[b]": "skipped",
        "tests/faults/test_y.py::test_d9_d10_i2_both": "passed",
        "tests/faults/test_y.py::test_d9_breaks": "failed",
        "tests/faults/test_y.py::test_a_kill": "failed",
    }

    assert summarize(outcomes, page) == [
        "D9   1 passed, 1 failed",
        "D10  2 passed, 1 skipped   `x`",
        "                           also y",
        "I-2  1 passed              a",
        "2 cases shown, 4 tests, 1 failed",
    ]


def test_the_last_lines_count_kills_and_say_how_long_the_next_run_took() -> None:
    one = {"kill at plan.before-return": 3, "tables judged": 1, "tables that held": 1}
    took = {"next run took s: 4": 2, "next run took s: 9": 1}

    lines = summarize_kills([one, {"kill at stage.after-write": 1}, took])

    assert lines[-3:] == [
        "2 kill points, 4 kills",
        "the next run mended 3 of them in at most 4 s (median), 9 s (all)",
        "1 of 1 tables held by both audits: nothing lost, nothing doubled",
    ]
    assert (
        summarize_kills([took])[-1]
        == "the next run mended 3 of them in at most 4 s (median), 9 s (all)"
    )
    failed = summarize_kills([{"tables judged": 2, "tables that held": 1}])
    assert failed[-1] == "1 of 2 tables held by both audits: RECORDS LOST OR DOUBLED"
