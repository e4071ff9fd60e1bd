"""Reads in parallel: none waits for another, and none for longer than its time."""

import threading
import time

import pytest

from frazil.observability.parallel_reads import MOST_THREADS, read_all


def test_a_late_read_holds_up_no_other() -> None:
    late = threading.Event()

    found = read_all({"late": late.wait, "quick": lambda: 1, "wrong": lambda: 1 // 0}, 0.2)
    late.set()

    assert list(found) == ["late", "quick", "wrong"]
    assert found["quick"] == 1
    assert isinstance(found["late"], TimeoutError)
    assert isinstance(found["wrong"], ZeroDivisionError)


def test_reads_run_at_the_same_time() -> None:
    meeting = threading.Barrier(MOST_THREADS)

    found = read_all({str(n): meeting.wait for n in range(MOST_THREADS)}, 10)

    assert sorted(found.values()) == list(range(MOST_THREADS))  # type: ignore[type-var]


def test_never_more_than_a_few_run_at_once() -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def read() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01)
        with lock:
            running[0] -= 1

    read_all({str(n): read for n in range(3 * MOST_THREADS)}, 10)

    assert most[0] <= MOST_THREADS


def test_each_read_has_its_own_time_and_those_behind_late_ones_are_run() -> None:
    late = threading.Event()
    reads = {f"late {n}": late.wait for n in range(MOST_THREADS)}

    found = read_all({**reads, "last": lambda: True}, 0.2)
    limited = read_all({**reads, "last": lambda: True}, 5, 0.2)
    late.set()

    assert found["last"] is True
    assert str(found["late 0"]) == "no answer in 0 s"
    cut_off = "not read: the time limit of 0 s for all streams was reached"
    assert {str(limited[name]) for name in ("late 0", "last")} == {cut_off}


def test_with_equal_limits_only_reads_that_did_not_start_are_not_read() -> None:
    late = threading.Event()
    reads = {f"late {n}": late.wait for n in range(MOST_THREADS)}

    found = read_all({**reads, "last": late.wait}, 0.2, 0.2)
    late.set()

    assert {str(found[name]) for name in reads} == {"no answer in 0 s"}
    assert str(found["last"]).startswith("not read: the time limit")


@pytest.mark.parametrize("error", [SystemExit("why"), KeyboardInterrupt("why")])
def test_a_read_that_would_end_the_process_is_an_error(error: BaseException) -> None:
    def read() -> None:
        raise error

    found = read_all({"a": read}, 10)

    assert isinstance(found["a"], RuntimeError)
