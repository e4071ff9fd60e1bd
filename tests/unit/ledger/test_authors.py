"""What a snapshot tells of the person who decided, and why."""

import json

import pytest

from frazil.errors import ConfigurationError
from frazil.ledger.authors import Author, describe_decision

WAIVED = {"outcome": "waived", "waived": {"by": "jane", "reason": "known outage", "at": "x"}}


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        ({}, ""),
        ({"frazil.kind": "ingest", "frazil.quality": "empty"}, ""),
        (
            {"frazil.kind": "ingest", "frazil.quality": json.dumps(WAIVED)},
            "check waived by jane: known outage",
        ),
        (
            {
                "frazil.kind": "rewind",
                "frazil.target": "snapshot 4711",
                "frazil.by": "jane",
                "frazil.reason": "bad release",
                "frazil.approved-by": "joe",
            },
            "to snapshot 4711, jane: bad release, approved by joe",
        ),
        (
            {"frazil.kind": "gap", "frazil.by": "jane", "frazil.reason": "holidays"},
            "jane: holidays",
        ),
        (
            {"frazil.kind": "expire-rows", "frazil.target": "at before 2026"},
            "rule: at before 2026",
        ),
    ],
    ids=["nothing", "no decision", "a waiver", "a rollback", "a gap", "a rule"],
)
def test_a_decision_is_described_with_target_person_reason_and_approver(
    summary: dict[str, str], text: str
) -> None:
    assert describe_decision(summary) == text


@pytest.mark.parametrize(
    ("by", "reason", "missing", "step"),
    [
        ("jane", " ", "the reason is empty", "add --reason WHY, or fill in Reason in the form"),
        (
            "",
            "why",
            "no user is known",
            "add --by YOU; in Airflow trigger the DAG yourself, in the UI",
        ),
        ("", "", "no user is known and the reason is empty", "add --by YOU; .*; add --reason WHY"),
    ],
    ids=["no reason", "no user", "neither"],
)
def test_an_error_names_what_a_decision_lacks_and_how_to_give_it(
    by: str, reason: str, missing: str, step: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"a reason: {missing}\nNext: {step}"):
        Author(by, reason)


@pytest.mark.parametrize(("by", "reason"), [("J\udcfcrgen", "request 12"), ("jane", "St\ud800")])
def test_a_name_or_reason_that_is_not_utf_8_is_refused_before_anything_is_written(
    by: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match="not UTF-8; nothing was written"):
        Author(by, reason)
