"""Storms: tests of many seeds, rounds or kill points. `make test` runs a sample of them."""

import random
from collections import defaultdict
from collections.abc import Mapping


def choose_left_out(storms: Mapping[str, int], seed: int) -> set[str]:
    """Return the instances of storms that a sample leaves out; the seed decides.

    Args:
        storms: for each instance (`path::test[parameters]`) how many of its test are kept.
        seed: the random seed of the run; the workers of pytest-xdist share it.
    """
    instances: defaultdict[str, list[str]] = defaultdict(list)
    for instance in sorted(storms):
        instances[instance.partition("[")[0]].append(instance)
    left_out: set[str] = set()
    for test, found in instances.items():
        kept = random.Random(f"{seed} {test}").sample(found, min(storms[found[0]], len(found)))
        left_out.update(set(found) - set(kept))
    return left_out
