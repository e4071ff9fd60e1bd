"""Suites of Great Expectations, compiled to counters that one pass over the rows answers.

See `load_suite`, `check_suite_fits`, `compile_suite`, `judge_suite`, `ExpectationResult`.
May import: `ledger`, `streams`.
"""
