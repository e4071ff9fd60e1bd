"""Suites: what is read, and what is refused with file, expectation, field and fix."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.errors import SuiteError
from frazil.quality.expectations import Expectation
from frazil.quality.suite_files import load_suite

NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "a"}}


def write_suite(folder: Path, *expectations: object, **more: object) -> Path:
    path = folder / "suite.json"
    document = {"name": "suite", "expectations": list(expectations), **more}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def between(**kwargs: object) -> dict[str, object]:
    return {"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", **kwargs}}


def test_a_suite_is_read_with_severity_and_without_arguments_that_change_no_verdict(
    tmp_path: Path,
) -> None:
    noisy = {"column": "a", "mostly": None, "result_format": "SUMMARY", "catch_exceptions": True}
    entry = NOT_NULL | {"kwargs": noisy, "severity": "warning", "notes": "n", "meta": {}}

    suite = load_suite(write_suite(tmp_path, entry, id=None, notes=None, meta={}))

    assert suite.expectations == (Expectation(0, NOT_NULL["type"], {"column": "a"}, "warning"),)
    assert re.fullmatch("[0-9a-f]{16}", suite.hash)


def test_the_hash_follows_the_content_and_not_its_layout(tmp_path: Path) -> None:
    first = load_suite(write_suite(tmp_path, NOT_NULL))
    path = write_suite(tmp_path, NOT_NULL)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4, sort_keys=True))
    second = load_suite(path)
    third = load_suite(write_suite(tmp_path, NOT_NULL | {"severity": "info"}))

    assert first.hash == second.hash != third.hash


@pytest.mark.parametrize(
    ("entry", "facts", "fix"),
    [
        pytest.param("text", "itself: 'text' is not an object", "type and kwargs", id="no object"),
        pytest.param({**NOT_NULL, "typ": 1}, "typ: unknown key", "kwargs", id="unknown key"),
        pytest.param(
            {"type": "expect_column_values_to_not_be_nul", "kwargs": {}},
            "type: 'expect_column_values_to_not_be_nul' is not an expectation",
            "write 'expect_column_values_to_not_be_null'",
            id="misspelt type",
        ),
        pytest.param(
            {"type": "expect_column_values_to_match_like_pattern", "kwargs": {}},
            "on SQL databases only",
            "to_match_regex",
            id="no pandas engine",
        ),
        pytest.param(
            {"type": "expect_column_values_to_be_of_type", "kwargs": {}},
            "how pandas stores a batch",
            "stream file",
            id="type of pandas",
        ),
        pytest.param(
            NOT_NULL | {"kwargs": {}}, "kwargs.column: missing", "add 'column'", id="missing"
        ),
        pytest.param(between(min=1), "kwargs.min: unknown argument", "min_value", id="unknown"),
        pytest.param(between(), "neither min_value nor max_value", "at least one", id="no bound"),
        pytest.param(between(min_value=2, max_value=1), "less than", "swap", id="crossed bounds"),
        pytest.param(
            between(min_value=2, max_value="2013-01-01"),
            "min_value is of kind number, max_value of kind date",
            "same kind",
            id="mixed bounds",
        ),
        pytest.param(
            between(min_value=2**53 + 1), "is not exact as a 64-bit float", "correct", id="rounded"
        ),
        pytest.param(between(min_value="5"), "neither a number nor a date", "correct", id="text"),
        pytest.param(between(min_value=1, mostly=1.5), "from 0 to 1", "correct", id="share"),
        pytest.param(
            between(min_value=1, strict_min=1), "is not true or false", "correct", id="flag"
        ),
        pytest.param(
            between(min_value={"$PARAMETER": "x"}), "not supported", "value itself", id="parameter"
        ),
        pytest.param(
            between(min_value=1, row_condition={"type": "x"}),
            "is not a condition object",
            "write a condition object such as",
            id="condition",
        ),
        pytest.param(NOT_NULL | {"severity": "fatal"}, "'fatal' is unknown", "info", id="severity"),
        pytest.param(
            {
                "type": "expect_column_values_to_match_regex",
                "kwargs": {"column": "a", "regex": "("},
            },
            "'(' is not a regular expression",
            "correct",
            id="broken pattern",
        ),
    ],
)
def test_a_wrong_expectation_is_refused_with_file_place_field_and_fix(
    tmp_path: Path, entry: object, facts: str, fix: str
) -> None:
    path = write_suite(tmp_path, NOT_NULL, entry)

    with pytest.raises(SuiteError) as raised:
        load_suite(path)

    assert str(path) in raised.value.facts
    assert "expectations[1]" in raised.value.facts
    assert facts in raised.value.facts
    assert fix in raised.value.next_step


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        pytest.param("{", "not valid JSON", id="broken"),
        pytest.param('{"name": "a", "name": "b"}', "'name' appears twice", id="key twice"),
        pytest.param('{"name": NaN}', "NaN is not JSON", id="NaN"),
        pytest.param("[]", "not a JSON object", id="list"),
        pytest.param('{"expectations": []}', "name: missing", id="no name"),
        pytest.param('{"name": "a"}', "expectations: missing", id="no expectations"),
        pytest.param(
            '{"name": "a", "expectations": [], "x": 1}', "x: not supported", id="unknown key"
        ),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, text: str, facts: str) -> None:
    path = tmp_path / "suite.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(SuiteError, match=re.escape(str(path))) as raised:
        load_suite(path)

    assert facts in raised.value.facts


def test_a_missing_file_is_refused_with_the_option_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SuiteError) as raised:
        load_suite(tmp_path / "absent.json")

    assert "No such file" in raised.value.facts
    assert "quality.suite" in raised.value.next_step


def test_loading_and_judging_imports_neither_great_expectations_nor_pandas() -> None:
    heavy = ("great_expectations", "pandas", "pyarrow", "pyspark", "airflow")
    code = f"import sys, frazil.quality; print([m for m in {heavy} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
