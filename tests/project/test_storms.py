"""`make test` runs a sample of storms and of tests on a stack, another one with each seed."""

from pathlib import Path

from support.storms import STACK_SHARE, choose_left_out, choose_stack_tests

PROJECT = Path(__file__).parents[2]
KEPT = 3
STORM = {f"a.py::test_kill[{number}]": KEPT for number in range(9)}


def sample(seed: int, **others: int) -> set[str]:
    """Return the instances that a sample keeps."""
    return {*STORM, *others} - choose_left_out({**STORM, **others}, seed)


def test_a_sample_has_as_many_instances_as_the_mark_says() -> None:
    assert len(sample(1)) == KEPT
    assert sample(1, **{"b.py::test_few[1]": 5}) - {*STORM} == {"b.py::test_few[1]"}
    assert sample(1, **{"b.py::test_none[1]": 0}) <= {*STORM}


def test_the_seed_alone_decides_and_every_instance_has_its_turn() -> None:
    assert sample(7) == sample(7)
    assert set().union(*map(sample, range(40))) == {*STORM}


def test_a_share_of_the_tests_on_a_stack_is_kept_and_each_has_its_turn() -> None:
    tests = {f"a.py::test_{number}" for number in range(41)}

    kept = [tests - choose_stack_tests(tests, STACK_SHARE, seed) for seed in range(100)]

    assert {len(found) for found in kept} == {3}
    assert set().union(*kept) == tests
    assert choose_stack_tests(tests, STACK_SHARE, 7) == choose_stack_tests(tests, STACK_SHARE, 7)
    assert choose_stack_tests(set(), STACK_SHARE, 1) == set()


def test_all_storms_are_part_of_make_faults_or_make_matrix() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    recipe = "".join(
        makefile.partition(f"\n{target}:")[2].partition("\n\n")[0]
        for target in ("faults", "matrix")
    )
    files = [
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "tests").rglob("test_*.py")
        if "\n@pytest.mark.storm(" in path.read_text() and path.parent.name != "faults"
    ]

    assert files
    assert [path for path in files if path not in recipe] == []
