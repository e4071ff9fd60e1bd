"""What `make test` leaves out: most instances of storms, and most tests that need a stack."""

import random
from collections import defaultdict
from collections.abc import Collection, Mapping

STACK_SHARE = 16
"""Of how many tests on a stack, not marked `core`, a sample keeps one."""


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


def choose_stack_tests(tests: Collection[str], share: int, seed: int) -> set[str]:
    """Return the tests on a stack that a sample leaves out; the seed decides.

    Args:
        tests: those that are not marked `core`, by pytest's id.
        share: of how many tests one is kept, rounded up.
        seed: the random seed of the run; the workers of pytest-xdist share it.
    """
    kept = random.Random(f"{seed} stack").sample(sorted(tests), -(-len(tests) // share))
    return {*tests} - {*kept}
