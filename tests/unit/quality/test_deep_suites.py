"""What is nested so deep that a batch could not read it is refused when the suite is loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from frazil.errors import SuiteError
from frazil.quality.compiler import compile_suite
from frazil.quality.expectations import Suite
from frazil.quality.great_expectations import run_great_expectations
from frazil.quality.preaggregation import find_cut_points
from frazil.quality.suite_files import check_suite_fits, load_suite

COLUMNS = {"text": "string", "many": "list<string>"}
MATCH = "expect_column_values_to_match_regex"
PATTERNS: dict[str, Callable[[int], str]] = {
    "optional groups": lambda n: "(?:a" * n + ")?" * n,
    "captured groups": lambda n: "(a" * n + ")" * n,
    "lookaheads": lambda n: "(?=a" * n + ")" * n,
    "lookbehinds": lambda n: "(?<!a" * n + ")" * n,
    "alternatives": lambda n: "(?:a|b" * n + ")" * n,
    "atomic groups": lambda n: "(?>a" * n + ")" * n,
}


def join(word: str, levels: int) -> dict[str, object]:
    """Nest a comparison in groups."""
    found: dict[str, object] = {
        "type": "comparison",
        "column": {"name": "text"},
        "operator": "==",
        "parameter": "a",
    }
    for _ in range(levels):
        found = {"type": word, "conditions": [found]}
    return found


def load(folder: Path, kind: str, **kwargs: object) -> Suite:
    path = folder / "suite.json"
    plain = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "text"}}
    entries = [plain, {"type": kind, "kwargs": kwargs}]
    path.write_text(json.dumps({"name": "suite", "expectations": entries}))
    suite = load_suite(path)
    check_suite_fits(suite, COLUMNS)
    return suite


@pytest.mark.parametrize("levels", [60, 200])
@pytest.mark.parametrize("form", PATTERNS)
def test_a_pattern_with_too_many_levels_is_refused(tmp_path: Path, form: str, levels: int) -> None:
    pattern = PATTERNS[form](levels)

    with pytest.raises(SuiteError, match=r"expectations\[1\] .*match_regex.*kwargs.regex: "):
        load(tmp_path, MATCH, column="text", regex=pattern)
    with pytest.raises(SuiteError, match=r"expectations\[1\] .*regex_list.*kwargs.regex_list: "):
        load(tmp_path, f"{MATCH}_list", column="text", regex_list=["a", pattern])


@pytest.mark.parametrize("form", PATTERNS)
def test_a_pattern_with_few_levels_compiles(tmp_path: Path, form: str) -> None:
    suite = load(tmp_path, MATCH, column="text", regex=PATTERNS[form](20))

    compile_suite(suite, COLUMNS)
    find_cut_points(suite, COLUMNS)
    (result,) = run_great_expectations(suite.expectations[1:], pd.DataFrame({"text": ["a" * 30]}))
    assert not result.error


def deep_list(levels: int) -> object:
    found: object = "a"
    for _ in range(levels):
        found = [found]
    return found


def deep_schema(levels: int) -> object:
    found: object = {"type": "string"}
    for _ in range(levels):
        found = {"properties": {"a": found}}
    return found


@pytest.mark.parametrize("levels", [60, 200, 350])
@pytest.mark.parametrize(
    ("kind", "name", "make"),
    [
        (MATCH, "row_condition", lambda n: join("and", n)),
        ("expect_column_values_to_be_in_set", "value_set", lambda n: deep_list(2 * n)),
        ("expect_column_values_to_match_json_schema", "json_schema", deep_schema),
    ],
)
def test_an_argument_with_too_many_levels_is_refused(
    tmp_path: Path, kind: str, name: str, make: Callable[[int], object], levels: int
) -> None:
    more = {"regex": "a"} if kind == MATCH else {}

    with pytest.raises(SuiteError, match=rf"expectations\[1\] .*kwargs.{name}: nested deeper"):
        load(tmp_path, kind, column="text", **{**more, name: make(levels)})


@pytest.mark.parametrize("key", ["notes", "meta", "id"])
def test_another_key_with_too_many_levels_is_refused(tmp_path: Path, key: str) -> None:
    entry = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "text"}}
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"name": "s", "expectations": [entry | {key: deep_list(300)}]}))

    with pytest.raises(SuiteError, match=r"expectations\[0\] .*itself: nested deeper"):
        load_suite(path)


def test_a_condition_with_as_many_levels_as_allowed_is_judged(tmp_path: Path) -> None:
    suite = load(tmp_path, MATCH, column="text", regex="a", row_condition=join("and", 48))

    compile_suite(suite, COLUMNS)
    find_cut_points(suite, COLUMNS)
    (result,) = run_great_expectations(suite.expectations[1:], pd.DataFrame({"text": ["a"]}))
    assert (result.success, result.error) == (True, "")
