"""The expectations of Great Expectations 1.24: their arguments, and the columns that they fit.

One line per type; `name:kind` is an argument, `!` makes it required. A test compares names and
required arguments with the installed package, so that an upgrade cannot change them unnoticed.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from frazil.quality.expectations import Json, parse_bound
from frazil.quality.regex import MAX_LEVELS, is_nested_too_deep

Fit: TypeAlias = Literal[
    "any", "nulls", "text", "number", "steps", "bounds", "values", "comparable", "table"
]

_CONDITION = " row_condition:condition condition_parser:parser"
_MAP = "column:name! mostly:ratio" + _CONDITION
_AGGREGATE = "column:name!" + _CONDITION
_PAIR = "column_A:name! column_B:name! mostly:ratio ignore_row_if:pair-rule" + _CONDITION
_MULTI = "column_list:names! mostly:ratio ignore_row_if:row-rule" + _CONDITION
_STRICT = " strict_min:flag strict_max:flag"
_BOUNDS = " min_value:bound max_value:bound" + _STRICT
_NUMBERS = " min_value:number max_value:number" + _STRICT
_WHOLES = " min_value:whole max_value:whole" + _STRICT

_TYPES: Mapping[str, tuple[Fit, str]] = {
    "expect_column_distinct_values_to_be_in_set": ("values", _AGGREGATE + " value_set:values!"),
    "expect_column_distinct_values_to_contain_set": ("values", _AGGREGATE + " value_set:values!"),
    "expect_column_distinct_values_to_equal_set": ("values", _AGGREGATE + " value_set:values!"),
    "expect_column_kl_divergence_to_be_less_than": (
        "any",
        _AGGREGATE + " partition_object:object threshold:number internal_weight_holdout:ratio"
        " tail_weight_holdout:ratio bucketize_data:flag min_value:bound max_value:bound",
    ),
    "expect_column_max_to_be_between": ("bounds", _AGGREGATE + _BOUNDS),
    "expect_column_mean_to_be_between": ("bounds", _AGGREGATE + _BOUNDS),
    "expect_column_median_to_be_between": ("bounds", _AGGREGATE + _BOUNDS),
    "expect_column_min_to_be_between": ("bounds", _AGGREGATE + _BOUNDS),
    "expect_column_most_common_value_to_be_in_set": (
        "values",
        _AGGREGATE + " value_set:values! ties_okay:flag",
    ),
    "expect_column_pair_values_a_to_be_greater_than_b": ("comparable", _PAIR + " or_equal:flag"),
    "expect_column_pair_values_to_be_equal": ("comparable", _PAIR),
    "expect_column_pair_values_to_be_in_set": ("any", _PAIR + " value_pairs_set:pairs!"),
    "expect_column_proportion_of_non_null_values_to_be_between": ("nulls", _AGGREGATE + _NUMBERS),
    "expect_column_proportion_of_unique_values_to_be_between": ("any", _AGGREGATE + _NUMBERS),
    "expect_column_quantile_values_to_be_between": (
        "number",
        _AGGREGATE + " quantile_ranges:quantiles! allow_relative_error:any",
    ),
    "expect_column_stdev_to_be_between": ("number", _AGGREGATE + _NUMBERS),
    "expect_column_sum_to_be_between": ("number", _AGGREGATE + _NUMBERS),
    "expect_column_to_exist": ("table", "column:name! column_index:whole"),
    "expect_column_unique_value_count_to_be_between": ("any", _AGGREGATE + _WHOLES),
    "expect_column_value_lengths_to_be_between": ("text", _MAP + _WHOLES),
    "expect_column_value_lengths_to_equal": ("text", _MAP + " value:number!"),
    "expect_column_value_z_scores_to_be_less_than": (
        "number",
        _MAP + " threshold:number! double_sided:flag!",
    ),
    "expect_column_values_to_be_between": ("bounds", _MAP + _BOUNDS),
    "expect_column_values_to_be_dateutil_parseable": ("text", _MAP),
    "expect_column_values_to_be_decreasing": ("steps", _MAP + " strictly:flag"),
    "expect_column_values_to_be_in_set": ("values", _MAP + " value_set:values!"),
    "expect_column_values_to_be_increasing": ("steps", _MAP + " strictly:flag"),
    "expect_column_values_to_be_json_parseable": ("text", _MAP),
    "expect_column_values_to_be_null": ("nulls", _MAP),
    "expect_column_values_to_be_unique": ("any", _MAP),
    "expect_column_values_to_match_json_schema": ("text", _MAP + " json_schema:json-schema!"),
    "expect_column_values_to_match_regex": ("text", _MAP + " regex:regex"),
    "expect_column_values_to_match_regex_list": (
        "text",
        _MAP + " regex_list:regexes! match_on:any-or-all",
    ),
    "expect_column_values_to_match_strftime_format": ("text", _MAP + " strftime_format:text!"),
    "expect_column_values_to_not_be_in_set": ("values", _MAP + " value_set:values!"),
    "expect_column_values_to_not_be_null": ("nulls", _MAP),
    "expect_column_values_to_not_be_outliers": (
        "number",
        _MAP + " method:outlier-method multiplier:number",
    ),
    "expect_column_values_to_not_match_regex": ("text", _MAP + " regex:regex!"),
    "expect_column_values_to_not_match_regex_list": ("text", _MAP + " regex_list:regexes!"),
    "expect_compound_columns_to_be_unique": ("any", _MULTI),
    "expect_multicolumn_sum_to_equal": ("number", _MULTI + " sum_total:number!"),
    "expect_multicolumn_values_to_be_equal": ("comparable", _MULTI),
    "expect_select_column_values_to_be_unique_within_record": ("any", _MULTI),
    "expect_table_column_count_to_be_between": ("table", "min_value:whole max_value:whole"),
    "expect_table_column_count_to_equal": ("table", "value:whole!"),
    "expect_table_columns_to_match_ordered_list": ("table", "column_list:texts"),
    "expect_table_columns_to_match_set": ("table", "column_set:texts exact_match:flag"),
    "expect_table_row_count_to_be_between": (
        "table",
        "min_value:whole max_value:whole" + _STRICT + _CONDITION,
    ),
    "expect_table_row_count_to_equal": ("table", "value:whole!" + _CONDITION),
}

_SQL_ONLY = "Great Expectations supports it on SQL databases only"
_PANDAS_TYPES = "its verdict would depend on how pandas stores a batch, not on the data"
REFUSED: Mapping[str, tuple[str, str]] = {
    "expect_column_values_to_match_like_pattern": (_SQL_ONLY, "use …_to_match_regex"),
    "expect_column_values_to_match_like_pattern_list": (_SQL_ONLY, "use …_to_match_regex_list"),
    "expect_column_values_to_not_match_like_pattern": (_SQL_ONLY, "use …_to_not_match_regex"),
    "expect_column_values_to_not_match_like_pattern_list": (
        _SQL_ONLY,
        "use …_to_not_match_regex_list",
    ),
    "expect_query_results_to_match_comparison": (_SQL_ONLY, "remove it"),
    "expect_table_row_count_to_equal_other_table": (_SQL_ONLY, "remove it"),
    "unexpected_rows_expectation": (_SQL_ONLY, "use other expectations"),
    "expect_column_type_to_be": (_PANDAS_TYPES, "declare the type in the stream file"),
    "expect_column_values_to_be_in_type_list": (
        _PANDAS_TYPES,
        "declare the type in the stream file",
    ),
    "expect_column_values_to_be_of_type": (_PANDAS_TYPES, "declare the type in the stream file"),
}
"""Type → why Frazil refuses it, and what to use instead."""

IGNORED_ARGUMENTS = frozenset({"result_format", "catch_exceptions"})
"""Great Expectations may write them; they change the form of a result, never the verdict."""
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "pair-rule": ("both_values_are_missing", "either_value_is_missing", "neither"),
    "row-rule": ("all_values_are_missing", "any_value_is_missing", "never"),
    "any-or-all": ("any", "all"),
    "outlier-method": ("iqr", "std"),
    "parser": ("great_expectations", "great_expectations__experimental__", "pandas", "spark"),
}
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


@dataclass(frozen=True)
class Signature:
    """The arguments of one type: name → kind; `fit` is the kind of columns that it accepts."""

    fit: Fit
    kinds: Mapping[str, str]
    required: frozenset[str]


def _read_signature(fit: Fit, line: str) -> Signature:
    pairs = [word.rstrip("!").split(":") for word in line.split()]
    required = frozenset(word.split(":")[0] for word in line.split() if word.endswith("!"))
    return Signature(fit, dict(pairs), required)


CATALOGUE: Mapping[str, Signature] = {
    name: _read_signature(fit, line) for name, (fit, line) in _TYPES.items()
}


def explain_wrong_argument(kind: str, value: Json) -> str | None:
    """Explain why an argument is not of this kind, or return None.

    Kinds are those of Great Expectations, without its silent conversions (`2.7` → 2, `true` → 1.0).
    """
    if kind in _CHOICES:
        choices = _CHOICES[kind]
        return None if value in choices else f"{value!r} is none of {', '.join(choices)}"
    if kind in ("bound", "number") and (kind == "bound" or not isinstance(value, str)):
        return _explain_wrong_bound(value)
    if kind in ("regex", "regexes"):
        return _explain_wrong_regex(kind, value)
    if kind == "json-schema":
        return _explain_wrong_json_schema(value)
    test, words = _KINDS[kind]
    return None if test(value) else f"{value!r} is not {words}"


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def list_items(value: Json) -> Sequence[Json] | None:
    """Return the items of a JSON list, or None for anything else."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else None


def _is_list(value: Json, test: Callable[[Json], bool], minimum: int) -> bool:
    items = list_items(value)
    return items is not None and len(items) >= minimum and all(test(item) for item in items)


def _is_whole(value: Json) -> bool:
    return _is_number(value) and _explain_wrong_bound(value) is None and value % 1 == 0  # type: ignore[operator]


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_name(value: Json) -> bool:
    return isinstance(value, str) and value != ""


def _is_scalar(value: Json) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _is_pair(value: Json) -> bool:
    items = list_items(value)
    return items is not None and list(map(_is_scalar, items)) == [True, True]


def _is_quantiles(value: Json) -> bool:
    return isinstance(value, Mapping) and set(value) == {"quantiles", "value_ranges"}


_KINDS: Mapping[str, tuple[Callable[[Json], bool], str]] = {
    "any": (lambda _: True, "anything"),
    "name": (_is_name, "the name of a column"),
    "names": (lambda v: _is_list(v, _is_name, 2), "a list of at least two columns"),
    "text": (_is_text, "a text"),
    "texts": (lambda v: _is_list(v, _is_text, 0), "a list of texts"),
    "number": (_is_number, "a number"),
    "whole": (_is_whole, "a whole number that is exact as a 64-bit float"),
    "flag": (lambda v: isinstance(v, bool), "true or false"),
    "ratio": (lambda v: _is_number(v) and 0 <= v <= 1, "a number from 0 to 1"),  # type: ignore[operator]
    "values": (lambda v: _is_list(v, _is_scalar, 0), "a list of values"),
    "pairs": (lambda v: _is_list(v, _is_pair, 0), "a list of pairs"),
    "object": (lambda v: isinstance(v, Mapping), "an object"),
    "quantiles": (_is_quantiles, 'an object with "quantiles" and "value_ranges"'),
    "condition": (lambda v: isinstance(v, str | Mapping), "a text or a condition object"),
}


def _explain_wrong_bound(value: Json) -> str | None:
    try:
        parse_bound(value)
    except ValueError as error:
        return str(error)
    return None


def _explain_wrong_regex(kind: str, value: Json) -> str | None:
    patterns = [value] if kind == "regex" else list_items(value)
    if not patterns:
        return f"{value!r} is not a list of at least one regular expression"
    for pattern in patterns:
        if not isinstance(pattern, str):
            return f"{pattern!r} is not a text"
        try:
            re.compile(pattern)
            is_deep = is_nested_too_deep(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return f"{pattern[:200]!r} is not a regular expression that can be used: {error}"
        if is_deep:
            return f"{pattern[:200]!r} has groups that are nested deeper than {MAX_LEVELS} levels"
    return None


def _explain_wrong_json_schema(value: Json) -> str | None:
    """Explain why a JSON schema is refused: it may read no file and no address.

    `jsonschema` loads what a reference names, and `$id` (`id` in old drafts) turns even a reference
    inside the schema into an address.
    """
    if not isinstance(value, Mapping):
        return f"{value!r} is not an object"
    for name, text in _list_texts(value):
        is_external = name in _REFERENCES and not text.startswith("#")
        if name in ("$id", "id") or is_external:
            return f"{name} {text!r} would be loaded: only references that begin with # are allowed"
    return None


def _list_texts(value: Json) -> Iterator[tuple[str, str]]:
    """List the key and the value of all texts in objects inside a value."""
    if isinstance(value, Mapping):
        yield from ((name, inner) for name, inner in value.items() if isinstance(inner, str))
        for inner in value.values():
            yield from _list_texts(inner)
    for item in list_items(value) or ():
        yield from _list_texts(item)
