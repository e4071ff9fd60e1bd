"""Random suites for the parity test: every type that one pass answers, arguments on the edges."""

import json
from pathlib import Path
from random import Random

from spark.random_rows import COLUMNS, DATES, DOUBLES, SINGLES, TEXTS, TIMES, WHOLES

BOUNDS = (
    -1e300,
    -1e19,
    -(2.0**53),
    -2.25,
    -1,
    0,
    0.1,
    0.25,
    0.5,
    1,
    1.5,
    2,
    3,
    5,
    2**31,
    2**53,
    1e19,
)
PATTERNS = (
    *(
        "",
        "^a",
        "a$",
        "^$",
        r"^a\Z",
        r"\d",
        r"^\d+$",
        r"\D",
        r"\s",
        r"\S",
        "^.{2}$",
        "^.$",
        "^..?$",
    ),
    *("(?s)^.$", "(?s)a.b", "[^a-z]", "😀", "[😀-😂]", "[^😀]{2}", "a|é|12", "^(?:a|b){1,3}$", "ß"),
    *(
        r"\n",
        r"\.",
        "x{2,3}",
        "x{39}x*$",
        r"[\d_]+$",
        "a*?b",
        "(?=a)a",
        "(?!a)",
        "'",
        r"\\",
        r"\$\{",
    ),
    *(r"^\w+$", r"\W", r"a\b", r"\b[b\d]", r"^[\w.-]*$", "(?:^|a){2}b", "(?:^a?){1,2}b"),
    *(r"^[A-Z]\d?$", "e\u0301", "[^\\n]{3,}", "a{,2}b", r"\A\s\Z", r"\w", "(?i)A", "(a)\\1", "x{"),
)
RATIOS = (1, 1, 1, 0.9, 0.75, 0.5, 1 / 3, 0.1, 0)


def draw_suite(rng: Random, kinds: list[str], path: Path) -> None:
    """Write a suite with one expectation of each kind, its arguments drawn."""
    entries = [{"type": kind, "kwargs": _draw_kwargs(rng, kind)} for kind in kinds]
    document = {"name": path.stem, "expectations": entries, "meta": {}}
    path.write_text(json.dumps(document), encoding="utf-8")


def _draw_kwargs(rng: Random, kind: str) -> dict[str, object]:
    kwargs = ARGUMENTS[kind](rng)
    if kind in CONDITIONAL and rng.random() < 0.35:
        kwargs |= _draw_condition(rng)
    return kwargs


def _pair(rng: Random) -> tuple[str, str]:
    return rng.choice(
        (
            *("ij", "ik", "km", "de", "df", "id", "kd", "gh", "gi", "gk", "gd"),
            "st",
            "no",
            "xy",
            "zw",
        )
    )


def _bounds(rng: Random, pool: tuple[object, ...]) -> dict[str, object]:
    low, high = sorted(rng.choices(pool, k=2))
    given = rng.choice((("min_value", low), ("max_value", high), ("both", None)))
    bounds = {"min_value": low, "max_value": high} if given[0] == "both" else dict([given])
    flags = {f"strict_{side}": True for side in ("min", "max") if rng.random() < 0.3}
    return {**bounds, **flags}


def _bounded(rng: Random, columns: str) -> dict[str, object]:
    column = rng.choice(columns)
    pools: dict[str, tuple[object, ...]] = {
        **dict.fromkeys("no", tuple(map(str, DATES))),
        **dict.fromkeys("xy", tuple(time.isoformat() for time in TIMES)),
        **dict.fromkeys("zw", tuple(time.isoformat() + "+00:00" for time in TIMES)),
    }
    return {"column": column, **_bounds(rng, pools.get(column, BOUNDS))}


def _mostly(rng: Random) -> dict[str, object]:
    return {"mostly": rng.choice(RATIOS)}


def _members(rng: Random) -> dict[str, object]:
    column = rng.choice("iikkddfssb")
    pools: dict[str, tuple[object, ...]] = {
        **dict.fromkeys("ik", (*WHOLES, 1.0, 0.5, None)),
        "d": (*DOUBLES[3:12], 1, 0, 2**53, None),
        "f": (*SINGLES, 0.1),
        "s": (*TEXTS, None),
        "b": (True, False, None),
    }
    values = rng.sample(pools[column], rng.randint(0, len(pools[column])))
    return {"column": column, "value_set": values, **_mostly(rng)}


def _several(rng: Random, columns: str) -> list[str]:
    return rng.sample(columns, rng.randint(2, len(columns)))


def _rule(rng: Random, *choices: str) -> dict[str, object]:
    return {"ignore_row_if": rng.choice(choices)} if rng.random() < 0.7 else {}


def _paired(rng: Random) -> dict[str, object]:
    left, right = _pair(rng)
    rules = ("both_values_are_missing", "either_value_is_missing", "neither")
    return {"column_A": left, "column_B": right, **_rule(rng, *rules), **_mostly(rng)}


def _row_rule(rng: Random) -> dict[str, object]:
    return _rule(rng, "all_values_are_missing", "any_value_is_missing", "never")


def _lengths(rng: Random) -> dict[str, object]:
    return {"column": "s", **_bounds(rng, (0, 1, 2, 3, 40)), **_mostly(rng)}


def _draw_condition(rng: Random) -> dict[str, object]:
    if rng.random() < 0.6:
        return {"row_condition": _draw_leaf(rng)}
    word = rng.choice(("and", "or"))
    return {"row_condition": {"type": word, "conditions": [_draw_leaf(rng), _draw_leaf(rng)]}}


def _draw_leaf(rng: Random) -> dict[str, object]:
    if rng.random() < 0.3:
        column, is_null = rng.choice("idsgnxl"), rng.random() < 0.5
        return {"type": "nullity", "column": {"name": column}, "is_null": is_null}
    column = rng.choice("ikdfgst")
    pool = TEXTS if column in "st" else (-1, 0, 0.5, 1, 2, 0.1)
    operator = rng.choice(("==", "!=", "<", "<=", ">", ">=", "IN", "NOT_IN"))
    many = operator in ("IN", "NOT_IN")
    parameter = rng.sample(pool, 2) if many else rng.choice(pool)
    leaf = {"type": "comparison", "column": {"name": column}}
    return {**leaf, "operator": operator, "parameter": parameter}


ARGUMENTS = {
    "expect_column_values_to_not_be_null": lambda r: {"column": r.choice([*COLUMNS]), **_mostly(r)},
    "expect_column_values_to_be_null": lambda r: {"column": r.choice([*COLUMNS]), **_mostly(r)},
    "expect_column_values_to_be_between": lambda r: {
        **_bounded(r, "iikkddffgghnoxyzw"),
        **_mostly(r),
    },
    "expect_column_values_to_be_in_set": _members,
    "expect_column_values_to_not_be_in_set": _members,
    "expect_column_values_to_match_regex": lambda r: {
        "column": "s",
        **({"regex": r.choice(PATTERNS)} if r.random() < 0.95 else {}),
        **_mostly(r),
    },
    "expect_column_values_to_not_match_regex": lambda r: {
        "column": "s",
        "regex": r.choice(PATTERNS),
        **_mostly(r),
    },
    "expect_column_values_to_match_regex_list": lambda r: {
        "column": "t",
        "regex_list": r.sample(PATTERNS[:-4], 2),
        **({"match_on": r.choice(("any", "all"))} if r.random() < 0.7 else {}),
        **_mostly(r),
    },
    "expect_column_values_to_not_match_regex_list": lambda r: {
        "column": "t",
        "regex_list": r.sample(PATTERNS[:-4], r.randint(1, 2)),
        **_mostly(r),
    },
    "expect_column_value_lengths_to_be_between": _lengths,
    "expect_column_value_lengths_to_equal": lambda r: {
        "column": "s",
        "value": r.choice((0, 1, 1, 2, 1.5)),
        **_mostly(r),
    },
    "expect_column_min_to_be_between": lambda r: _bounded(r, "iikkddfgghnoxyzw"),
    "expect_column_max_to_be_between": lambda r: _bounded(r, "iikkddfgghnoxyzw"),
    "expect_column_sum_to_be_between": lambda r: _bounded(r, "ijkmdefgh"),
    "expect_column_mean_to_be_between": lambda r: _bounded(r, "ijkmdefgh"),
    "expect_column_proportion_of_non_null_values_to_be_between": lambda r: {
        "column": r.choice([*COLUMNS]),
        **_bounds(r, (0, 0.25, 0.5, 0.9, 1)),
    },
    "expect_column_pair_values_a_to_be_greater_than_b": lambda r: {
        **_paired(r),
        **({"or_equal": r.random() < 0.5} if r.random() < 0.6 else {}),
    },
    "expect_column_pair_values_to_be_equal": _paired,
    "expect_multicolumn_sum_to_equal": lambda r: {
        "column_list": _several(r, r.choice(("ij", "ijk", "km"))),
        "sum_total": r.choice((0, 1, 2, 2, 3, 0.5, 2**53, 1e300)),
        **_row_rule(r),
        **_mostly(r),
    },
    "expect_multicolumn_values_to_be_equal": lambda r: {
        "column_list": _several(r, r.choice(("ijk", "st", "de", "no", "xy", "gh"))),
        **_row_rule(r),
        **_mostly(r),
    },
    "expect_table_row_count_to_be_between": lambda r: _bounds(r, (0, 1, 3, 10, 30, 40)),
    "expect_table_row_count_to_equal": lambda r: {"value": r.choice((0, 0, 0, 1))},
    "expect_column_to_exist": lambda r: {
        "column": r.choice(("i", "j", "nope")),
        **({"column_index": r.choice((0, 1, -19, 40))} if r.random() < 0.6 else {}),
    },
    "expect_table_column_count_to_equal": lambda r: {"value": r.choice((19, 19, 5))},
    "expect_table_column_count_to_be_between": lambda r: {
        r.choice(("min_value", "max_value")): r.choice((1, 18, 19, 20))
    },
    "expect_table_columns_to_match_ordered_list": lambda r: {
        "column_list": r.choice(([*COLUMNS], [*COLUMNS], ["i", "j"])),
    },
    "expect_table_columns_to_match_set": lambda r: {
        "column_set": r.choice(([*COLUMNS][::-1], ["i", "j"], ["i", "nope"])),
        "exact_match": r.random() < 0.5,
    },
}
"""Type → how to draw its arguments: every type that one pass answers."""

CONDITIONAL = {
    kind
    for kind in ARGUMENTS
    if not kind.startswith(("expect_table_column", "expect_column_to_exist"))
}
