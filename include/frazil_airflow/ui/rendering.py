"""What both pages use: the Jinja templates, and parallel reads with a time limit."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

Value = TypeVar("Value")

TIMEOUT_SECONDS = 12.0
"""Longer than one timeout of the Kafka client, so that the page shows that client's error."""

_THREADS = 8
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: object) -> str:
    """Render a file of `templates/`; all values are escaped."""
    return _TEMPLATES.get_template(template).render(values)


def format_time(at: datetime) -> str:
    """Format an instant to the second; headings name the time zone."""
    return f"{at:%Y-%m-%d %H:%M:%S}"


def read_all(reads: Mapping[str, Callable[[], Value]]) -> dict[str, Value | Exception]:
    """Run all reads in parallel; return the error of each that fails or exceeds the time limit."""
    executor = ThreadPoolExecutor(_THREADS)
    futures = {name: executor.submit(read) for name, read in reads.items()}
    wait(futures.values(), TIMEOUT_SECONDS)
    executor.shutdown(wait=False, cancel_futures=True)
    results: dict[str, Value | Exception] = {}
    for name, future in futures.items():
        result = _get_result(future)
        results[name] = result
    return results


def _get_result(future: Future[Value]) -> Value | Exception:
    if not future.done() or future.cancelled():
        return TimeoutError(f"no answer in {TIMEOUT_SECONDS:.0f} s")
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, Exception) else RuntimeError(str(error))
