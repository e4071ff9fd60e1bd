"""Run Great Expectations on staged rows, converted to pandas without loss.

The conversion is Arrow's, except that integers with nulls become floats only where that is exact,
times become nanoseconds where they fit, since Great Expectations tests for that type, and floats
become doubles.
"""

import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from frazil.errors import SuiteError
from frazil.ledger import keys
from frazil.quality.expectations import Expectation, Json
from frazil.quality.rules import ExpectationResult, describe_count, describe_expected
from frazil.quality.sql import EXACT_INTEGER

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    Frame: TypeAlias = pa.Table | pd.DataFrame
    Series: TypeAlias = pd.Series[Any]


_LONG_LIMIT = 2**63
_COORDINATE = ("topic", "partition", "offset")
_RAISED = re.compile(r"^Traceback .*\n(?:[ \t].*\n)*([\w.]+)", re.MULTILINE)
"""The class of a traceback's first exception: the line after its frames, which are indented."""
_INDEX = "frazil_index"
_BATCH = "staged"
_AS_FLOATS = frozenset(
    {
        "expect_column_mean_to_be_between",
        "expect_column_median_to_be_between",
        "expect_column_quantile_values_to_be_between",
        "expect_column_stdev_to_be_between",
        "expect_column_sum_to_be_between",
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_not_be_outliers",
        "expect_multicolumn_sum_to_equal",
    }
)
"""Types that get decimals as floats: Great Expectations' own conversion fails on a missing value,
and under a row condition assigns values to the wrong rows."""


def to_pandas(frame: "Frame") -> "pd.DataFrame":
    """Convert rows to pandas, in Kafka's order if they have the column `_kafka`."""
    import pandas as pd  # noqa: PLC0415 - slow

    if isinstance(frame, pd.DataFrame):
        return frame
    table = sort_by_coordinate(frame)
    columns = {name: _convert(table.column(name)) for name in table.column_names}
    return pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows))


def sort_by_coordinate(table: "pa.Table") -> "pa.Table":
    """Sort by topic, partition and offset if the rows have `_kafka`, and drop that column."""
    import pyarrow as pa  # noqa: PLC0415 - slow
    import pyarrow.compute as pc  # noqa: PLC0415 - slow

    if keys.KAFKA_COLUMN not in table.column_names:
        return table
    kafka = table.column(keys.KAFKA_COLUMN)
    coordinates = pa.table({name: pc.struct_field(kafka, name) for name in _COORDINATE})
    order = pc.sort_indices(coordinates, [(name, "ascending") for name in _COORDINATE])
    return table.drop_columns([keys.KAFKA_COLUMN]).take(order)


def _convert(column: "pa.ChunkedArray") -> "Series":
    import pandas as pd  # noqa: PLC0415 - slow
    import pyarrow as pa  # noqa: PLC0415 - slow

    if pa.types.is_integer(column.type):
        if not _loses_digits(column):
            return cast("Series", column.cast(pa.int64()).to_pandas())
        values = [float("nan") if value is None else value for value in column.to_pylist()]
        return pd.Series(values, dtype=object)
    if pa.types.is_floating(column.type):
        return cast("Series", column.cast(pa.float64()).to_pandas())
    if pa.types.is_timestamp(column.type):
        return _convert_times(column)
    return cast("Series", column.to_pandas())


def _loses_digits(column: "pa.ChunkedArray") -> bool:
    """Return whether pandas would round a value, or overflow in a sum."""
    import pyarrow.compute as pc  # noqa: PLC0415 - slow

    limits = pc.min_max(column).as_py()
    largest = max(abs(limits["min"] or 0), abs(limits["max"] or 0))
    return bool(largest > EXACT_INTEGER or largest * len(column) >= _LONG_LIMIT)


def _convert_times(column: "pa.ChunkedArray") -> "Series":
    import pyarrow as pa  # noqa: PLC0415 - slow

    try:
        return cast("Series", column.cast(pa.timestamp("ns", column.type.tz)).to_pandas())
    except pa.ArrowInvalid:  # years before 1678 or after 2261
        return cast("Series", column.to_pandas())


def list_decimals(frame: "Frame") -> frozenset[str]:
    """Return the columns of decimals, also of a table in which all values of one are missing."""
    import pandas as pd  # noqa: PLC0415 - slow
    import pyarrow as pa  # noqa: PLC0415 - slow

    if isinstance(frame, pd.DataFrame):
        return frozenset(name for name in frame.columns if _holds_decimals(frame[name]))
    return frozenset(field.name for field in frame.schema if pa.types.is_decimal(field.type))


def _holds_decimals(values: "Series") -> bool:
    return values.dtype == object and any(isinstance(value, Decimal) for value in values)


def add_floats(rows: "pd.DataFrame", floats: Mapping[str, str]) -> "pd.DataFrame":
    """Add a copy of 64-bit floats, missing values as NaN, of each column of decimals.

    The column itself stays: row conditions compare its exact values, as for every other type.

    Args:
        rows: the rows.
        floats: name of a column → name of its copy.
    """
    copies = {copy: rows[name].map(_to_float).astype(float) for name, copy in floats.items()}
    return rows.assign(**copies) if copies else rows


def _to_float(value: object) -> float:
    return float(value) if isinstance(value, Decimal) else float("nan")


def run_great_expectations(
    rest: Iterable[Expectation], frame: "Frame"
) -> tuple[ExpectationResult, ...]:
    """Judge expectations on the staged rows, in the given order.

    An expectation that Great Expectations cannot judge has failed; `error` has the reason.

    Raises:
        SuiteError: Great Expectations refuses an argument that the catalogue accepts.
    """
    expectations = tuple(rest)
    if not expectations:
        return ()
    results: dict[int, ExpectationResult] = {}
    with _quiet():
        rows = to_pandas(frame)
        plain = [e for e in expectations if e.type not in _AS_FLOATS]
        numeric = [e for e in expectations if e.type in _AS_FLOATS]
        results |= _validate(plain, rows, {})
        summed = {name for expectation in numeric for name in expectation.domain}
        floats = {name: f"frazil: {name} as floats" for name in summed & list_decimals(frame)}
        results |= _validate(numeric, add_floats(rows, floats), floats)
    return tuple(results[expectation.index] for expectation in expectations)


def _validate(
    expectations: list[Expectation], rows: "pd.DataFrame", floats: Mapping[str, str]
) -> dict[int, ExpectationResult]:
    from great_expectations.execution_engine.pandas_execution_engine import (  # noqa: PLC0415 - slow
        PandasExecutionEngine,
    )
    from great_expectations.validator.validator import Validator  # noqa: PLC0415 - slow

    if not expectations:
        return {}
    validator = Validator(execution_engine=PandasExecutionEngine(batch_data_dict={_BATCH: rows}))
    validator.metrics_calculator.show_progress_bars = False
    answers = validator.graph_validate(
        configurations=[_configure(expectation, floats) for expectation in expectations],
        runtime_configuration={"result_format": "BASIC"},
    )
    by_index = {expectation.index: expectation for expectation in expectations}
    read = [
        (cast("ExpectationConfiguration", a.expectation_config).meta[_INDEX], a) for a in answers
    ]
    return {index: _read_result(by_index[index], answer, rows) for index, answer in read}


def _configure(expectation: Expectation, floats: Mapping[str, str]) -> "ExpectationConfiguration":
    from great_expectations.expectations.expectation_configuration import (  # noqa: PLC0415 - slow
        ExpectationConfiguration,
    )

    given = ExpectationConfiguration(
        type=expectation.type,
        kwargs=_choose_columns(expectation, floats),
        meta={_INDEX: expectation.index},
    )
    try:
        return given.to_domain_obj().configuration
    except ValueError as error:
        raise SuiteError(
            f"expectations[{expectation.index}] ({expectation.type}): Great Expectations refuses "
            f"its arguments: {error}",
            "correct the suite, then run `frazil streams`",
        ) from error


def _choose_columns(expectation: Expectation, floats: Mapping[str, str]) -> dict[str, Json]:
    """Return the arguments, with the copies of columns in place of the columns checked."""
    kwargs = dict(expectation.kwargs)
    if floats and "column" in kwargs:
        name = expectation.text("column")
        kwargs["column"] = floats.get(name, name)
    if floats and "column_list" in kwargs:
        names = expectation.texts("column_list")
        kwargs["column_list"] = [floats.get(name, name) for name in names]
    return kwargs


def _read_result(
    expectation: Expectation, answer: "ExpectationValidationResult", rows: "pd.DataFrame"
) -> ExpectationResult:
    figures = cast("Mapping[str, Json]", answer.result or {})
    unexpected, percent = figures.get("unexpected_count"), figures.get("unexpected_percent")
    error = _read_error(answer.exception_info or {})
    return ExpectationResult(
        index=expectation.index,
        type=expectation.type,
        column=", ".join(expectation.domain) or None,
        success=bool(answer.success) and not error,
        observed=_describe_figures(expectation, figures, rows),
        expected=describe_expected(expectation),
        severity=expectation.severity,
        unexpected_count=int(unexpected) if isinstance(unexpected, int) else None,
        unexpected_percent=float(percent) if isinstance(percent, int | float) else None,
        error=f"Great Expectations could not answer: {error}" if error else "",
    )


_FIGURES = frozenset(
    {
        "expect_column_kl_divergence_to_be_less_than",
        "expect_column_mean_to_be_between",
        "expect_column_proportion_of_non_null_values_to_be_between",
        "expect_column_proportion_of_unique_values_to_be_between",
        "expect_column_stdev_to_be_between",
        "expect_column_sum_to_be_between",
        "expect_column_unique_value_count_to_be_between",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_row_count_to_be_between",
        "expect_table_row_count_to_equal",
    }
)
"""Types whose observed value is a figure of many rows. That of other types is a value of a row, or
contains some: a smallest value, a median, a set."""

_OF_VALUES = frozenset({"expect_column_mean_to_be_between", "expect_column_sum_to_be_between"})
"""Types whose figure is the value itself if there is one."""


def _describe_figures(
    expectation: Expectation, figures: Mapping[str, Json], rows: "pd.DataFrame"
) -> str:
    """Describe counts and figures; never a value of a row, which an erasure would not reach."""
    unexpected, elements = figures.get("unexpected_count"), figures.get("element_count")
    missing = figures.get("missing_count", 0)
    if isinstance(unexpected, int) and isinstance(elements, int) and isinstance(missing, int):
        return describe_count(unexpected, elements - missing)
    observed = figures.get("observed_value")
    if isinstance(observed, Real) and _is_figure(expectation, rows):
        return str(observed)
    return "no values" if observed is None else "a value of the rows (not shown)"


def _is_figure(expectation: Expectation, rows: "pd.DataFrame") -> bool:
    """Return whether the observed value aggregates several rows and so is no single row's value."""
    if expectation.type not in _OF_VALUES:
        return expectation.type in _FIGURES
    has_condition = "row_condition" in expectation.kwargs  # its rows are not counted here
    return not has_condition and int(rows[expectation.text("column")].count()) > 1


def _read_error(info: Mapping[str, object]) -> str:
    """Return the class of an exception of the expectation or of one of its metrics, or "".

    The message may contain a value of a row.
    """
    entries = [info, *(entry for entry in info.values() if isinstance(entry, Mapping))]
    raised = [entry for entry in entries if entry.get("raised_exception")]
    if not raised:
        return ""
    found = _RAISED.search(str(raised[0].get("exception_traceback")))
    return f"{found[1] if found else 'an exception'} (its message may contain values: not shown)"


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress tracebacks and deprecation warnings of Great Expectations in the task's log."""
    logger = logging.getLogger("great_expectations")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
