"""Ask Great Expectations itself, with its pandas engine, what one pass cannot answer.

No data context: it would read files and send usage statistics. Importing Great Expectations takes
seconds, so only the function that needs it does.
"""

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from frazil.errors import SuiteError
from frazil.expectations import Expectation, Json
from frazil.gx_frame import decimals_to_floats, to_pandas
from frazil.quality_results import ExpectationResult, describe_count, describe_expected

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    from frazil.gx_frame import Frame

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
"""Great Expectations turns decimals into floats for these itself, but fails on a missing one, and
under a row condition puts them in the wrong rows: they are converted before."""


def run_great_expectations(
    rest: Iterable[Expectation], frame: "Frame"
) -> tuple[ExpectationResult, ...]:
    """Judge expectations on the staged rows, in the order given.

    An expectation that Great Expectations cannot answer has failed; `error` says why.

    Raises:
        SuiteError: Great Expectations refuses an argument that the catalogue let pass.
    """
    expectations = tuple(rest)
    if not expectations:
        return ()
    results: dict[int, ExpectationResult] = {}
    with _quiet():
        rows = to_pandas(frame)
        plain = [e for e in expectations if e.type not in _AS_FLOATS]
        numeric = [e for e in expectations if e.type in _AS_FLOATS]
        results |= _ask(plain, rows)
        results |= _ask(numeric, decimals_to_floats(rows))
    return tuple(results[expectation.index] for expectation in expectations)


def _ask(expectations: list[Expectation], rows: "pd.DataFrame") -> dict[int, ExpectationResult]:
    from great_expectations.execution_engine.pandas_execution_engine import (  # noqa: PLC0415 - slow
        PandasExecutionEngine,
    )
    from great_expectations.validator.validator import Validator  # noqa: PLC0415 - slow

    if not expectations:
        return {}
    validator = Validator(execution_engine=PandasExecutionEngine(batch_data_dict={_BATCH: rows}))
    validator.metrics_calculator.show_progress_bars = False
    answers = validator.graph_validate(
        configurations=[_configure(expectation) for expectation in expectations],
        runtime_configuration={"result_format": "BASIC"},
    )
    by_index = {expectation.index: expectation for expectation in expectations}
    read = [
        (cast("ExpectationConfiguration", a.expectation_config).meta[_INDEX], a) for a in answers
    ]
    return {index: _read_answer(by_index[index], answer) for index, answer in read}


def _configure(expectation: Expectation) -> "ExpectationConfiguration":
    from great_expectations.expectations.expectation_configuration import (  # noqa: PLC0415 - slow
        ExpectationConfiguration,
    )

    given = ExpectationConfiguration(
        type=expectation.type,
        kwargs=dict(expectation.kwargs),
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


def _read_answer(
    expectation: Expectation, answer: "ExpectationValidationResult"
) -> ExpectationResult:
    figures = cast("Mapping[str, Json]", answer.result or {})
    unexpected, percent = figures.get("unexpected_count"), figures.get("unexpected_percent")
    error = _read_error(answer.exception_info or {})
    return ExpectationResult(
        index=expectation.index,
        type=expectation.type,
        column=", ".join(expectation.domain) or None,
        success=bool(answer.success) and not error,
        observed=_describe_answer(figures),
        expected=describe_expected(expectation),
        severity=expectation.severity,
        unexpected_count=int(unexpected) if isinstance(unexpected, int) else None,
        unexpected_percent=float(percent) if isinstance(percent, int | float) else None,
        error=f"Great Expectations could not answer: {error}" if error else "",
    )


def _describe_answer(figures: Mapping[str, Json]) -> str:
    unexpected, elements = figures.get("unexpected_count"), figures.get("element_count")
    missing = figures.get("missing_count", 0)
    if isinstance(unexpected, int) and isinstance(elements, int) and isinstance(missing, int):
        return describe_count(unexpected, elements - missing)
    observed = str(figures.get("observed_value", "see Great Expectations"))
    return observed if len(observed) <= 200 else f"{observed[:200]}…"  # noqa: PLR2004 - one line


def _read_error(info: Mapping[str, object]) -> str:
    """Read the message of an exception: flat for the expectation, or one entry per metric."""
    entries = [info, *(entry for entry in info.values() if isinstance(entry, Mapping))]
    raised = [entry for entry in entries if entry.get("raised_exception")]
    return str(raised[0].get("exception_message")).strip() if raised else ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep tracebacks and deprecations of Great Expectations out of the task's log."""
    logger = logging.getLogger("great_expectations")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
