"""What the pages share: one frame of HTML, and questions that nobody waits for in vain."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from html import escape
from typing import TypeVar

Answer = TypeVar("Answer")

PATIENCE_SECONDS = 12.0
"""Longer than one timeout of Kafka, shorter than a person's patience."""

_THREADS = 8
_STYLE = """
:root { color-scheme: light dark; font: 14px/1.5 system-ui, sans-serif; }
body { margin: 1.5rem; }
h1 { font-size: 1.25rem; margin: 0 0 .25rem; }
h2 { font-size: 1.05rem; margin: 1.5rem 0 .25rem; }
p { margin: 0 0 1rem; opacity: .75; white-space: pre-line; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .45rem .75rem; border-bottom: 1px solid #8884; }
th, td { vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.ok { color: light-dark(#17692c, #6fd08a); }
.warn { color: light-dark(#8a5200, #f0b35a); }
.fail { color: light-dark(#b3261e, #ff8a80); font-weight: 600; }
.next { opacity: .75; }
"""


def ask_all(
    questions: Mapping[str, Callable[[], Answer]],
) -> dict[str, Answer | Exception]:
    """Ask everything at once; what fails, or is late, is its error, and holds up no other."""
    executor = ThreadPoolExecutor(_THREADS)
    futures = {name: executor.submit(question) for name, question in questions.items()}
    wait(futures.values(), PATIENCE_SECONDS)
    executor.shutdown(wait=False, cancel_futures=True)
    answers: dict[str, Answer | Exception] = {}
    for name, future in futures.items():
        taken = _take(future)
        answers[name] = taken
    return answers


def _take(future: Future[Answer]) -> Answer | Exception:
    if not future.done() or future.cancelled():
        return TimeoutError(f"no answer in {PATIENCE_SECONDS:.0f} s")
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def write_page(title: str, body: str, *, again_seconds: int | None = None) -> str:
    """Write a page around a body of HTML; it loads itself again where that is asked for."""
    again = f'<meta http-equiv="refresh" content="{again_seconds}">' if again_seconds else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
{again}<style>{_STYLE}</style></head>
<body><h1>{escape(title)}</h1>{body}</body></html>"""


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write values as a table; every one is escaped, numbers stand to the right."""
    heads = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = "\n".join(f"<tr>{''.join(map(write_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n{lines}\n</tbody></table>"


def write_cell(value: object) -> str:
    """Write one cell; what nobody knows is empty."""
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape(str(value)) if value is not None else ''}</td>"
