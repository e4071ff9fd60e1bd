"""The page `/frazil/`: where every stream stands, read-only, for people who are logged in."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Literal, cast

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from frazil_airflow.connections import use_airflow_connections
from frazil_airflow.parsing import list_stream_names
from frazil_airflow.web import App

PATIENCE_SECONDS = 12.0
"""Longer than one timeout of Kafka, shorter than a person's patience."""

_THREADS = 8
_COLUMNS = (
    "Stream",
    "State",
    "Epoch",
    "Rows",
    "Lag (offsets)",
    "Stream clock (s)",
    "Table clock (s)",
    "Why",
    "Newest snapshot",
)
_STYLE = """
:root { color-scheme: light dark; font: 14px/1.5 system-ui, sans-serif; }
body { margin: 1.5rem; }
h1 { font-size: 1.25rem; margin: 0 0 .25rem; }
p { margin: 0 0 1rem; opacity: .75; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .45rem .75rem; border-bottom: 1px solid #8884; }
th, td { vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.ok { color: light-dark(#17692c, #6fd08a); }
.warn { color: light-dark(#8a5200, #f0b35a); }
.fail { color: light-dark(#b3261e, #ff8a80); font-weight: 600; }
.next { opacity: .75; }
"""


@dataclass(frozen=True)
class Line:
    """One stream as the page shows it; `None` where nobody knows, clocks in seconds."""

    stream: str
    state: str
    level: Literal["ok", "warn", "fail"] = "fail"
    epoch: int | None = None
    rows: int | None = None
    lag: int | None = None
    stream_clock_seconds: int | None = None
    table_clock_seconds: int | None = None
    why: str = ""
    next_step: str | None = None
    snapshot_id: int | None = None


def build_app() -> App:
    """Build the app; every request needs a session, and shows only DAGs that its user may read."""
    app = FastAPI(title="Frazil", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    def show_streams(user: GetUserDep) -> str:
        dags = {f"ingest__{name}": name for name in list_stream_names()}
        readable = get_auth_manager().filter_authorized_dag_ids(dag_ids=set(dags), user=user)
        lines = read_lines(sorted(dags[dag_id] for dag_id in readable))
        return render_page(lines, datetime.now(UTC))

    return cast("App", app)


def read_lines(streams: Sequence[str]) -> tuple[Line, ...]:
    """Ask all streams at once; one that does not answer in time says so and holds up no other."""
    use_airflow_connections()
    executor = ThreadPoolExecutor(_THREADS)
    futures = {name: executor.submit(read_line, name) for name in streams}
    wait(futures.values(), PATIENCE_SECONDS)
    executor.shutdown(wait=False, cancel_futures=True)
    return tuple(_answer(name, future) for name, future in futures.items())


def _answer(stream: str, future: Future[Line]) -> Line:
    if future.done() and not future.cancelled():
        error = future.exception()
        return Line(stream, type(error).__name__, why=str(error)) if error else future.result()
    return Line(stream, "no answer", why=f"no answer in {PATIENCE_SECONDS:.0f} s")


def read_line(stream: str) -> Line:
    """Read where one stream stands; what is wrong with it is part of the answer."""
    from frazil.errors import FrazilError  # noqa: PLC0415 - the page's start stays light
    from frazil.reports import read_status  # noqa: PLC0415
    from frazil.workspace import open_workspace  # noqa: PLC0415

    try:
        work = open_workspace(stream, "page")
        status = read_status(work)
        table = work.store.find(work.stream.table.name)
    except FrazilError as error:
        return Line(stream, error.code, why=error.facts, next_step=error.next_step)
    head = table.current_snapshot() if table else None
    report = status.freshness
    return Line(
        stream=stream,
        state=report.cause.replace("_", " "),
        level=report.level,
        epoch=status.epoch,
        rows=status.rows,
        lag=report.lag_offsets,
        stream_clock_seconds=report.stream_clock_seconds,
        table_clock_seconds=report.table_clock_seconds,
        why=report.text,
        next_step=report.next_step,
        snapshot_id=head.snapshot_id if head else None,
    )


def render_page(lines: Iterable[Line], at: datetime) -> str:
    """Write the page as HTML; it loads itself again every fifteen seconds."""
    heads = "".join(f"<th>{column}</th>" for column in _COLUMNS)
    rows = "\n".join(_render_line(line) for line in lines)
    empty = "" if rows else "<p>No stream files yet.</p>"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Frazil</title>
<meta http-equiv="refresh" content="15"><style>{_STYLE}</style></head>
<body><h1>Streams</h1><p>As of {at:%Y-%m-%d %H:%M:%S} UTC. Read from Kafka and the tables.</p>
<table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table>{empty}</body></html>"""


def _render_line(line: Line) -> str:
    name = escape(line.stream)
    why = escape(line.why)
    if line.next_step:
        why += f'<div class="next">Next: {escape(line.next_step)}</div>'
    cells = (
        f'<td><a href="../dags/ingest__{name}" target="_top">{name}</a></td>',
        f'<td class="{line.level}">{escape(line.state)}</td>',
        *(_number(value) for value in (line.epoch, line.rows, line.lag)),
        *(_number(value) for value in (line.stream_clock_seconds, line.table_clock_seconds)),
        f"<td>{why}</td>",
        f"<td>{line.snapshot_id or ''}</td>",
    )
    return f"<tr>{''.join(cells)}</tr>"


def _number(value: int | None) -> str:
    return f'<td class="number">{"" if value is None else f"{value:,}"}</td>'
