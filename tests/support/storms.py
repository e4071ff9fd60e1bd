"""Storms: tests of many seeds, rounds or kill points. `make test` runs a sample of them."""

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

MARK = "storm"


def choose_sample(items: Sequence[pytest.Item], seed: int) -> set[pytest.Item]:
    """Return the instances of storms that a sample leaves out; the seed decides.

    The argument of the mark `storm` is the number of instances of a test that stay.
    """
    instances: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(MARK):
            instances[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for test, found in sorted(instances.items()):
        mark = found[0].get_closest_marker(MARK)
        assert mark is not None
        found.sort(key=lambda item: item.nodeid)  # workers of pytest-xdist must agree
        kept = random.Random(f"{seed} {test}").sample(found, min(mark.args[0], len(found)))
        left_out.update(set(found) - set(kept))
    return left_out
