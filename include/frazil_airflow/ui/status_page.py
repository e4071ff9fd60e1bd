"""The page `/frazil/`: where every stream stands, read-only, for people who are logged in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from html import escape
from typing import Annotated, Literal, cast

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse

from frazil_airflow.connections import use_airflow_connections
from frazil_airflow.dag_loading import list_stream_names
from frazil_airflow.ui.app import App
from frazil_airflow.ui.html import ask_all, write_cell, write_page
from frazil_airflow.ui.stream_page import Wanted, show_stream

Offset = Annotated[int | None, Query(ge=0)]

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
        return render_page(read_lines(list_readable(user)), datetime.now(UTC))

    @app.get("/streams/{stream}", response_class=HTMLResponse)
    def show_one(
        stream: str,
        user: GetUserDep,
        partition: Offset = None,
        offset: Offset = None,
        topic: str = "",
    ) -> str:
        if stream not in list_readable(user):
            raise HTTPException(404, "no such stream, or none that you may see")
        if partition is None or offset is None:
            return show_stream(stream)
        return show_stream(stream, Wanted(partition, offset, topic))

    return cast("App", app)


def list_readable(user: GetUserDep) -> list[str]:
    """List the streams whose ingest DAG a user may read."""
    dags = {f"ingest__{name}": name for name in list_stream_names()}
    readable = get_auth_manager().filter_authorized_dag_ids(dag_ids=set(dags), user=user)
    return sorted(dags[dag_id] for dag_id in readable)


def read_lines(streams: Sequence[str]) -> tuple[Line, ...]:
    """Ask all streams at once; one that does not answer in time says so and holds up no other."""
    use_airflow_connections()
    answers = ask_all({name: partial(read_line, name) for name in streams})
    return tuple(
        Line(name, _name(found), why=str(found)) if isinstance(found, Exception) else found
        for name, found in answers.items()
    )


def _name(error: Exception) -> str:
    return "no answer" if isinstance(error, TimeoutError) else type(error).__name__


def read_line(stream: str) -> Line:
    """Read where one stream stands; what is wrong with it is part of the answer."""
    from frazil.errors import FrazilError  # noqa: PLC0415 - the page's start stays light
    from frazil.observability.status import read_status  # noqa: PLC0415
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
    body = f"""<p>As of {at:%Y-%m-%d %H:%M:%S} UTC. Read from Kafka and the tables.</p>
<table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table>{empty}"""
    return write_page("Streams", body, again_seconds=15)


def _render_line(line: Line) -> str:
    name = escape(line.stream)
    why = escape(line.why)
    if line.next_step:
        why += f'<div class="next">Next: {escape(line.next_step)}</div>'
    cells = (
        f'<td><a href="../dags/ingest__{name}">{name}</a></td>',
        f'<td class="{line.level}">{escape(line.state)}</td>',
        *map(write_cell, (line.epoch, line.rows, line.lag)),
        *map(write_cell, (line.stream_clock_seconds, line.table_clock_seconds)),
        f"<td>{why}</td>",
        f'<td><a href="streams/{name}">{line.snapshot_id or "history"}</a></td>',
    )
    return f"<tr>{''.join(cells)}</tr>"
