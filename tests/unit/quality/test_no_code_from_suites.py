"""A suite file runs no code and loads no other file: real Great Expectations, real pandas."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import jsonschema
import pandas as pd
import pyarrow as pa
import pytest

from frazil.errors import SuiteError
from frazil.quality.compiler import compile_suite
from frazil.quality.expectations import Json
from frazil.quality.great_expectations import run_great_expectations
from frazil.quality.suite_files import check_suite_fits, load_suite

COLUMNS = {"a": "int", "s": "string", "flag": "boolean"}
ROWS = {"a": [1, 2, 3], "s": ["x", "`y`", None], "flag": [True, False, True]}
UNIQUE = "expect_column_values_to_be_unique"
"""Never answered by one pass: Great Expectations gets the row condition."""

RUN_BY_PANDAS = (
    "@pd.io.common.os.system('touch {mark}') == 0 and a > 0",
    "@pd.io.common.os.mknod('{mark}') == a",
    "a.to_csv('{mark}') == a",
    "`a`.to_csv('{mark}') == `a`",
    "(a).rename(@pd.io.common.os.mknod('{mark}')).isnull()",
    "a in [@pd.io.common.os.mknod('{mark}')]",
)
CALLS = (
    *RUN_BY_PANDAS,
    "@__builtins__['__import__']('os').system('touch {mark}') == 0",
    "@pd.io.common.__builtins__['open']('{mark}', 'w').name == a",
)
TEXTS = (*CALLS, "a > 1", "s == 'x' and a in [1, 2]", 'col("a") > 1', "1 == 1", "")


def compare_to(name: str, operator: str, parameter: object) -> dict[str, object]:
    compared = {"type": "comparison", "column": {"name": name}}
    return {**compared, "operator": operator, "parameter": parameter}


def with_condition(condition: object, parser: str | None = None) -> dict[str, object]:
    return {"column": "a", "row_condition": condition, "condition_parser": parser}


def put_path(value: object, mark: Path) -> object:
    text = json.dumps(value)
    return json.loads(text.replace("{mark}", str(mark)))


def judge(folder: Path, kind: str, kwargs: object) -> bool:
    """Load a suite of one expectation and let Great Expectations judge it."""
    path = folder / "suite.json"
    listed = [{"type": kind, "kwargs": kwargs, "meta": {"n": "{{ 1 }} ${HOME}"}}]
    path.write_text(json.dumps({"name": "suite", "expectations": listed}), encoding="utf-8")
    suite = load_suite(path)
    check_suite_fits(suite, COLUMNS)
    assert compile_suite(suite, COLUMNS).rest == suite.expectations
    (result,) = run_great_expectations(suite.expectations, pa.table(ROWS))
    assert result.error == ""
    return result.success


@pytest.mark.parametrize("call", RUN_BY_PANDAS)
def test_pandas_itself_would_run_these_texts(tmp_path: Path, call: str) -> None:
    mark = tmp_path / "mark"

    # The value of a call may be no condition; it has run all the same.
    with suppress(TypeError, ValueError, AttributeError):
        pd.DataFrame(ROWS).query(call.replace("{mark}", str(mark)))

    assert mark.exists()


@pytest.mark.parametrize("parser", ["pandas", "spark", "great_expectations", None])
@pytest.mark.parametrize("text", TEXTS)
def test_a_condition_written_as_text_is_refused_and_its_object_is_shown(
    tmp_path: Path, text: str, parser: str | None
) -> None:
    mark = tmp_path / "mark"

    with pytest.raises(SuiteError, match=r"expectations\[0\].*kwargs.row_condition") as raised:
        judge(tmp_path, UNIQUE, with_condition(put_path(text, mark), parser))

    assert "run as code" in raised.value.facts
    assert '"type": "comparison"' in raised.value.next_step
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("a >= -1.5", compare_to("a", ">=", -1.5)),
        ("s == 'x y'", compare_to("s", "==", "x y")),
        ('col("a") != 7', compare_to("a", "!=", 7)),
        ("a > 1.2.3", compare_to("price", ">", 0)),
    ],
)
def test_a_refused_text_is_answered_with_its_own_object(
    tmp_path: Path, text: str, example: Mapping[str, Json]
) -> None:
    with pytest.raises(SuiteError) as raised:
        judge(tmp_path, UNIQUE, with_condition(text, "pandas"))

    assert json.dumps(example) in raised.value.next_step


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({"type": "pass_through", "pass_through_filter": "{call}"}, id="pass_through"),
        pytest.param(
            {
                "type": "and",
                "conditions": [{"type": "pass_through", "pass_through_filter": "{call}"}],
            },
            id="pass_through inside and",
        ),
        pytest.param({"type": "or", "conditions": ["{call}"]}, id="text inside or"),
        pytest.param(compare_to("{call}", "==", 1), id="column of a comparison"),
        pytest.param(compare_to("` + {call} + `", "==", 1), id="column with backticks"),
        pytest.param(compare_to("a\n+ {call}", "==", 1), id="column of two lines"),
        pytest.param(
            {"type": "nullity", "column": {"name": "({call})"}, "is_null": False},
            id="column of a null test",
        ),
        pytest.param(compare_to("s", "== {call} or", "x"), id="operator"),
        pytest.param(compare_to("s", "==", "` {call} `"), id="constant with backticks"),
        pytest.param(compare_to("s", "IN", ["x", "` {call} `"]), id="list with backticks"),
        pytest.param(compare_to("s", "==", {"{call}": 1}), id="constant that is an object"),
        pytest.param(compare_to("s", "==", ["{call}"]), id="constant that is a list"),
        pytest.param(compare_to("s", "IN", [["{call}"]]), id="list in a list"),
    ],
)
def test_an_object_that_could_reach_query_as_code_is_refused(
    tmp_path: Path, shape: object, call: str
) -> None:
    mark = tmp_path / "mark"
    condition = json.loads(json.dumps(shape).replace("{call}", json.dumps(call)[1:-1]))

    with pytest.raises(SuiteError, match=r"expectations\[0\].*kwargs.row_condition"):
        judge(tmp_path, UNIQUE, with_condition(put_path(condition, mark)))

    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("template", ["{call}", "' + {call} + '", '" + {call} + "', "\\' + {call}"])
def test_a_text_constant_stays_a_text(tmp_path: Path, template: str) -> None:
    mark = tmp_path / "mark"
    texts = [str(put_path(template.replace("{call}", call), mark)) for call in CALLS]
    texts = [text.replace("`", "") for text in texts]
    parts = [*(compare_to("s", "==", text) for text in texts), compare_to("s", "IN", [*texts, "x"])]

    assert judge(tmp_path, UNIQUE, with_condition({"type": "or", "conditions": parts}))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        ("unexpected_rows_expectation", {"unexpected_rows_query": "SELECT 1"}),
        ("expect_query_results_to_match_comparison", {"query": "SELECT 1"}),
        (UNIQUE, {"column": {"$PARAMETER": "now()"}}),
        (
            "expect_column_kl_divergence_to_be_less_than",
            {"column": "a", "partition_object": {"weights": {"$PARAMETER": "now()"}}},
        ),
        (UNIQUE, {"column": "a", "unexpected_rows_query": "SELECT 1"}),
    ],
)
def test_queries_and_parameters_are_refused(tmp_path: Path, kind: str, kwargs: object) -> None:
    with pytest.raises(SuiteError, match=r"expectations\[0\]"):
        judge(tmp_path, kind, kwargs)


@pytest.mark.slow
def test_variables_of_the_environment_and_templates_are_not_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    kwargs = {"column": "s", "value_set": ["$SECRET", "${SECRET}", "{{ 'x' }}", "`y`"]}

    assert not judge(tmp_path, "expect_column_distinct_values_to_be_in_set", kwargs)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "{uri}"},
        {"allOf": [{"$dynamicRef": "{uri}"}]},
        {"$id": "{uri}", "$ref": "#/definitions/a"},
        {"x": {"$id": "{uri}", "$ref": "#/definitions/a"}, "$ref": "#/x"},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "properties": {"b": {"id": "{uri}", "$ref": "#/a"}},
        },
    ],
)
def test_a_json_schema_that_names_another_document_is_refused(
    tmp_path: Path, schema: object
) -> None:
    uri = (tmp_path / "other.json").as_uri()
    kwargs = {"column": "s", "json_schema": json.loads(json.dumps(schema).replace("{uri}", uri))}

    with pytest.raises(SuiteError, match="would be loaded"):
        judge(tmp_path, "expect_column_values_to_match_json_schema", kwargs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jsonschema_itself_would_load_another_document(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"type": "integer"}', encoding="utf-8")

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate("text", {"$ref": other.as_uri()})


@pytest.mark.slow
def test_references_inside_a_json_schema_are_followed(tmp_path: Path) -> None:
    schema = {"definitions": {"id": {"type": "integer"}}, "$ref": "#/definitions/id"}
    kwargs = {"column": "s", "json_schema": schema, **with_condition(compare_to("s", "==", "1"))}

    assert judge(tmp_path, "expect_column_values_to_match_json_schema", kwargs | {"column": "s"})
