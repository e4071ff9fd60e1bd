"""A small batch is interpreted by Spark; the environment moves the limit."""

import pytest
from support.lake import Lake

from frazil.ingest.fast_path import INTERPRET_MAX_RECORDS, INTERPRET_VARIABLE, choose_evaluation


def test_a_batch_up_to_the_limit_is_interpreted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_limit, above = lake.plan(INTERPRET_MAX_RECORDS, 0), lake.plan(INTERPRET_MAX_RECORDS, 1)

    assert choose_evaluation(at_limit)["spark.sql.codegen.wholeStage"] == "false"
    assert choose_evaluation(above) == {}
    monkeypatch.setenv(INTERPRET_VARIABLE, "0")
    assert choose_evaluation(at_limit) == {}
