"""Whose group it is, is decided by the metadata of its offsets."""

import pytest

from frazil.errors import GroupInUseError
from frazil.kafka.cluster import GroupFacts
from frazil.kafka.monitoring_group import is_current, require_own_group

OWN = {"orders": {0: (4, "frazil:orders"), 1: (5, "frazil:orders")}}


def find_refusal(facts: GroupFacts) -> str | None:
    """Return why the group is refused; None if the stream may use it."""
    try:
        require_own_group(facts, "lag", "orders")
    except GroupInUseError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "facts", [GroupFacts(0, {}), GroupFacts(0, OWN)], ids=["a new group", "its own offsets"]
)
def test_a_stream_may_use_a_group_that_only_it_has_used(facts: GroupFacts) -> None:
    assert find_refusal(facts) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (GroupFacts(2, OWN), "2 active members"),
        (GroupFacts(0, {"orders": {0: (4, "")}}), "another client"),
        (GroupFacts(0, {**OWN, "other": {0: (4, "")}}), "another client"),
        (GroupFacts(0, {"orders": {0: (4, "frazil:other")}}), "stream other commits"),
    ],
    ids=["members", "offsets without our mark", "of another topic, too", "another stream"],
)
def test_a_group_that_another_client_uses_is_refused(facts: GroupFacts, reason: str) -> None:
    assert reason in (find_refusal(facts) or "")


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [({"orders": (4, 5)}, True), ({"orders": (4, 6)}, False), ({"orders": (4, 5, 0)}, False)],
    ids=["the same", "another offset", "a new partition"],
)
def test_a_group_is_current_if_it_shows_each_offset(
    offsets: dict[str, tuple[int, ...]],
    expected: bool,  # noqa: FBT001 - one of the table's columns
) -> None:
    assert is_current(GroupFacts(0, OWN), offsets) is expected
