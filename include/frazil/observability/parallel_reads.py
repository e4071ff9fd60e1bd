"""Reads that run in parallel, each with a time limit."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Value = TypeVar("Value")

MOST_THREADS = 8


class LateReadError(TimeoutError):
    """A read took longer than its time limit."""


def read_all(
    reads: Mapping[str, Callable[[], Value]], seconds: float, total_seconds: float | None = None
) -> dict[str, Value | Exception]:
    """Run all reads in parallel; return the error of each that fails or exceeds a time limit.

    A read may take `seconds` from its own start, all of them together `total_seconds`. A read that
    takes longer is not waited for: its thread ends with the process at the latest.
    """
    ended: queue.SimpleQueue[tuple[str, Value | Exception]] = queue.SimpleQueue()
    now = time.monotonic()
    last = float("inf") if total_seconds is None else now + total_seconds
    results: dict[str, Value | Exception] = {}
    waiting, running, deadlines = list(reads), set[str](), dict[str, float]()
    while (waiting or running) and now < last:
        while waiting and len(running) < MOST_THREADS:
            name = waiting.pop(0)
            running.add(name)
            deadlines[name] = now + seconds
            threading.Thread(target=_run, args=(name, reads[name], ended), daemon=True).start()
        try:
            remaining = min(last, *(deadlines[n] for n in running)) - time.monotonic()
            name, result = ended.get(timeout=max(0.0, remaining))
        except queue.Empty:
            now = time.monotonic()
            running = {n for n in running if deadlines[n] > now}
            continue
        now = time.monotonic()
        if name in running:
            running.remove(name)
            results[name] = result
    late = LateReadError(f"no answer in {seconds:.0f} s")
    text = f"not read: the time limit of {total_seconds or 0:.0f} s for all streams was reached"
    unread = {n: late if deadlines.get(n, now + 1) <= now else LateReadError(text) for n in reads}
    return unread | results


def _run(
    name: str,
    read: Callable[[], Value],
    ended: "queue.SimpleQueue[tuple[str, Value | Exception]]",
) -> None:
    try:
        ended.put((name, read()))
    except Exception as error:  # noqa: BLE001 - the caller decides about each
        ended.put((name, error))
    except BaseException as error:  # noqa: BLE001 - a read must not end its thread unnoticed
        ended.put((name, RuntimeError(type(error).__name__)))
