"""What one pass counts: shared metrics, good rows only, and the rest left to others."""

import re
from datetime import UTC, date, datetime

import pytest

from frazil.quality.compiler import compile_suite
from frazil.quality.expectations import Expectation, Suite
from frazil.quality.regex import to_java_regex
from frazil.quality.row_conditions import parse_row_condition, write_condition
from frazil.quality.rules import CompiledSuite, CountRule
from frazil.quality.sql import (
    SqlColumn,
    compare,
    compare_columns,
    find_among,
    write_count,
    write_sum,
    write_weighted_sum,
)
from frazil.quality.value_tests import NOT_ASCII
from frazil.streams.column_types import write_text

COLUMNS = {"a": "int", "b": "long", "c": "double", "s": "string", "x": "timestamp", "_kafka": "x"}
INT, LONG, FLOAT = SqlColumn("a", "int"), SqlColumn("b", "long"), SqlColumn("c", "double")
TEXT, DECIMAL = SqlColumn("s", "string"), SqlColumn("g", "decimal", 9, 2)

REGEX = "expect_column_values_to_match_regex"


def compile_one(kind: str, **kwargs: object) -> CompiledSuite:
    suite = Suite("suite", "0" * 16, (Expectation(0, kind, kwargs),))
    return compile_suite(suite, COLUMNS, good="_good")


def test_expectations_share_metrics_and_every_metric_looks_at_good_rows_only() -> None:
    listed = [
        Expectation(0, "expect_column_values_to_not_be_null", {"column": "c"}),
        Expectation(1, "expect_column_values_to_not_be_null", {"column": "c", "mostly": 0.5}),
        Expectation(2, "expect_column_values_to_be_between", {"column": "c", "min_value": 1}),
        Expectation(3, "expect_column_values_to_be_between", {"column": "c", "max_value": 9}),
        Expectation(4, "expect_column_sum_to_be_between", {"column": "c", "max_value": 9}),
        Expectation(5, "expect_table_row_count_to_equal", {"value": 9}),
    ]

    compiled = compile_suite(Suite("suite", "0" * 16, tuple(listed)), COLUMNS, good="_good")

    assert len({metric.name for metric in compiled.metrics}) == len(compiled.metrics) == 6
    assert all("(_good)" in metric.sql for metric in compiled.metrics)
    assert len(compiled.one_pass) == 6


def compare_to(name: str, operator: str, parameter: object) -> dict[str, object]:
    compared = {"type": "comparison", "column": {"name": name}}
    return {**compared, "operator": operator, "parameter": parameter}


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        pytest.param("expect_column_values_to_be_unique", {"column": "a"}, id="distinct"),
        pytest.param("expect_column_values_to_be_increasing", {"column": "a"}, id="order"),
        pytest.param("expect_column_stdev_to_be_between", {"column": "a"}, id="two passes"),
        pytest.param(REGEX, {"column": "s", "regex": "(?i)a"}, id="pattern"),
        pytest.param(
            "expect_column_values_to_be_in_set", {"column": "a", "value_set": [2**53 + 1]}, id="set"
        ),
        pytest.param(
            "expect_column_pair_values_to_be_equal",
            {"column_A": "b", "column_B": "c"},
            id="long beside double",
        ),
        pytest.param(
            "expect_column_values_to_not_be_null",
            {"column": "a", "row_condition": compare_to("s", ">=", 1)},
            id="row condition that compares a text with a number",
        ),
    ],
)
def test_what_sql_cannot_say_exactly_is_left_to_great_expectations(
    kind: str, kwargs: dict[str, object]
) -> None:
    compiled = compile_one(kind, **kwargs)

    assert [expectation.type for expectation in compiled.rest] == [kind]
    assert (compiled.one_pass, compiled.metrics) == ((), ())


@pytest.mark.parametrize(
    ("pattern", "is_doubted"), [(r"^\w+$", True), (r"\bx", True), ("x", False)]
)
def test_words_beyond_ascii_are_in_doubt(pattern: str, *, is_doubted: bool) -> None:
    (rule,) = compile_one(REGEX, column="s", regex=pattern).one_pass
    listed = compile_one(f"{REGEX}_list", column="s", regex_list=["x", pattern])

    assert isinstance(rule, CountRule)
    assert (rule.doubtful is not None) is is_doubted
    assert any(write_text(NOT_ASCII) in m.sql for m in listed.metrics) is is_doubted


@pytest.mark.parametrize(("is_absolute", "brought"), [(False, "t"), (True, "m")])
def test_a_sum_takes_what_a_row_brings_along(brought: str, *, is_absolute: bool) -> None:
    end = "THEN CAST(`a` AS DOUBLE) END"
    sql = write_sum(f"`s` = '{end}'", "`a`", is_absolute=is_absolute)

    weighed = write_weighted_sum(sql, "`a`", "t", "m")

    before, _, after = sql.rpartition(end)
    assert end in before  # the text of the condition stays
    assert weighed == f"{before}THEN coalesce({brought}, CAST(`a` AS DOUBLE)) END{after}"
    assert write_weighted_sum(sql, "`b`", "t", "m") == sql
    count = write_count(f"s = '{end}'")
    assert write_weighted_sum(count, "`a`", "t", "m") == count


def test_the_rest_names_every_column_that_it_reads() -> None:
    condition = {"type": "and", "conditions": [compare_to("a", ">", 1), compare_to("s", "==", "x")]}
    unique = compile_one(
        "expect_compound_columns_to_be_unique", column_list=["b", "c"], row_condition=condition
    )
    rising = compile_one("expect_column_values_to_be_increasing", column="a")

    assert set(unique.rest[0].columns) == {"a", "b", "c", "s"}
    assert rising.rest[0].columns == ("a", "_kafka")


@pytest.mark.parametrize(
    ("column", "sign", "bound", "sql"),
    [
        (INT, ">=", 1.5, "`a` >= 2L"),
        (INT, ">", 1.5, "`a` > 1L"),
        (INT, "<", 1.5, "`a` < 2L"),
        (INT, "<=", -1.5, "`a` <= -2L"),
        (INT, "=", 1.5, "FALSE"),
        (INT, "!=", 1.5, "TRUE"),
        (LONG, ">=", 1e19, "FALSE"),
        (LONG, "<", 1e19, "TRUE"),
        (LONG, ">", -(2.0**63), "`b` > (-9223372036854775807L - 1L)"),
        (LONG, ">", -1e19, "TRUE"),
        (DECIMAL, ">=", 0.1, "`g` >= 0.11BD"),
        (DECIMAL, "<=", -0.1, "`g` <= -0.11BD"),
        (DECIMAL, "=", 0.5, "`g` = 0.50BD"),
        (DECIMAL, "=", 0.1, "FALSE"),
        (FLOAT, "<", 0.1, "`c` < 0.1D"),
        (TEXT, "=", "it's", "`s` = CAST(X'69742773' AS STRING)"),
        (SqlColumn("n", "date"), "<", date(2013, 1, 31), "`n` < DATE'2013-01-31'"),
        (
            SqlColumn("z", "timestamptz"),
            "<",
            datetime.fromisoformat("2013-01-31T02:00:00+02:00"),
            "`z` < TIMESTAMP'2013-01-31 00:00:00Z'",
        ),
        (SqlColumn("x", "timestamp"), "<", datetime(2013, 1, 31, tzinfo=UTC), None),
        (TEXT, "<", 1.0, None),
    ],
)
def test_constants_are_written_in_the_type_of_the_column(
    column: SqlColumn, sign: str, bound: object, sql: str | None
) -> None:
    assert compare(column, sign, bound) == sql


def test_a_column_is_compared_with_another_only_where_spark_rounds_neither() -> None:
    wide = SqlColumn("w", "decimal", 38, 30)

    assert compare_columns(INT, ">", FLOAT) == "CAST(`a` AS DOUBLE) > CAST(`c` AS DOUBLE)"
    assert compare_columns(LONG, ">", DECIMAL) == "`b` > `g`"
    assert compare_columns(LONG, ">", FLOAT) is None
    assert compare_columns(LONG, ">", wide) is None
    assert compare_columns(TEXT, ">", INT) is None


def test_a_set_is_written_without_members_that_no_value_can_equal() -> None:
    assert find_among(INT, [1, 2.0, 2.5, None]) == "`a` IN (1L, 2L)"
    assert find_among(TEXT, []) == "FALSE"
    assert find_among(TEXT, ["a", 1]) is None


@pytest.mark.parametrize("text", ["a'b", "a\\b", "${spark.x}", "a\nb", "\u2028", "\x00"])
def test_a_text_that_settings_of_spark_could_change_is_written_in_hexadecimal(text: str) -> None:
    found = re.fullmatch("CAST\\(X'([0-9a-f]+)' AS STRING\\)", write_text(text))

    assert found is not None
    assert bytes.fromhex(found[1]).decode() == text


@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        (
            {"type": "and", "conditions": [compare_to("a", ">", 1), compare_to("s", "==", "x")]},
            "((NOT (`a` IS NULL) AND `a` > 1L) AND (NOT (`s` IS NULL) AND `s` = 'x'))",
        ),
        (compare_to("a", "!=", 1), "((`a` IS NULL) OR `a` != 1L)"),
        (compare_to("a", "NOT_IN", [1, 2]), "((`a` IS NULL) OR NOT (`a` IN (1L, 2L)))"),
        (compare_to("a", ">=", -1), "(NOT (`a` IS NULL) AND `a` >= -1L)"),
        (compare_to("a", "==", parameter=True), None),
        (compare_to("a", "IN", []), None),
        ({"type": "nullity", "column": {"name": "s"}, "is_null": False}, "(NOT (`s` IS NULL))"),
        ({"type": "nullity", "column": {"name": "a"}, "is_null": True}, "(`a` IS NULL)"),
    ],
)
def test_a_row_condition_becomes_sql_in_which_a_missing_value_is_unlike_every_constant(
    condition: object, sql: str | None
) -> None:
    assert write_condition(parse_row_condition(condition), {"a": INT, "s": TEXT}) == sql


@pytest.mark.parametrize(
    ("pattern", "java"),
    [
        ("^[A-Z]{2}$", "(?d)^[A-Z]{2,2}$"),
        (r"a\Z", r"(?d)a\z"),
        ("a{,2}b", "(?d)a{0,2}b"),
        ("x{", r"(?d)x\x{7b}"),
        ("(?s).", r"(?d)[\x{0}-\x{10ffff}]"),
        ("a{2,}", "(?d)a{2}a*"),
        ("é😀", r"(?d)\x{e9}\x{1f600}"),
        (r"\w", None),
        (r"\b", None),
        ("(?i)a", None),
        ("(?m)^a", None),
        (r"(a)\1", None),
        ("(?<=a)b", None),
        ("(?:ab)+", None),
        ("(?:ab){65}", None),
        ("(?:^|a){2}b", None),
        ("(?:^-?){2}x", None),
        ("(?:(?=a)|a){2,3}b", None),
        ("(?:^|a){1,2}b", "(?d)(?:(?:^|a)){1,2}b"),
        ("a++", None),
    ],
)
def test_a_pattern_is_translated_only_where_python_and_java_mean_the_same(
    pattern: str, java: str | None
) -> None:
    assert to_java_regex(pattern) == java
