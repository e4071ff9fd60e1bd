"""The rules of state tables hold in random histories, and each of them is needed."""

import pytest
from support.change_model import RULES
from support.state_model import run_history

STEPS = 60


def test_the_state_is_the_fold_of_the_change_table_in_every_history() -> None:
    results = [run_history(seed, STEPS) for seed in range(250)]

    assert [result for result in results if result not in {"", "halted"}] == []
    assert results.count("") > 150


@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_the_state_goes_wrong(rule: str) -> None:
    seed = RULES[rule]

    assert run_history(seed, STEPS) in {"", "halted"}
    assert run_history(seed, STEPS, without=rule).startswith("seed ")
