"""The page `/frazil/`: the status of every stream, read-only, for users who are logged in."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal, cast

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse

from frazil.observability.parallel_reads import LateReadError, read_all
from frazil_airflow.connections import use_airflow_connections
from frazil_airflow.dag_loading import list_stream_names
from frazil_airflow.ui.app import App
from frazil_airflow.ui.rendering import TIMEOUT_SECONDS, format_time, render
from frazil_airflow.ui.stream_page import RequestedOffset, show_stream

Offset = Annotated[int | None, Query(ge=0)]


@dataclass(frozen=True)
class StreamRow:
    """One stream as the page shows it; `None` means unknown."""

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
    """Build the app; requests need a session, and show only streams whose DAG the user may read."""
    app = FastAPI(title="Frazil", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    def show_streams(user: GetUserDep) -> str:
        return render_page(read_rows(list_readable(user)), datetime.now(UTC))

    @app.get("/streams/{stream}", response_class=HTMLResponse)
    def show_one(
        stream: str,
        user: GetUserDep,
        partition: Offset = None,
        offset: Offset = None,
        topic: str = "",
    ) -> str:
        if stream not in list_readable(user):
            raise HTTPException(404, "no such stream, or its DAG is not visible to you")
        if partition is None or offset is None:
            return show_stream(stream)
        return show_stream(stream, RequestedOffset(partition, offset, topic))

    return cast("App", app)


def list_readable(user: GetUserDep) -> list[str]:
    """List the streams whose ingest DAG a user may read."""
    dags = {f"ingest__{name}": name for name in list_stream_names()}
    readable = get_auth_manager().filter_authorized_dag_ids(dag_ids=set(dags), user=user)
    return sorted(dags[dag_id] for dag_id in readable)


def read_rows(streams: Sequence[str]) -> tuple[StreamRow, ...]:
    """Read the status of all streams in parallel; a failed read becomes a row with its error."""
    use_airflow_connections()
    reads = {name: partial(read_row, name) for name in streams}
    results = read_all(reads, TIMEOUT_SECONDS, TIMEOUT_SECONDS)
    return tuple(
        _explain(name, result) if isinstance(result, Exception) else result
        for name, result in results.items()
    )


def _explain(stream: str, error: Exception) -> StreamRow:
    """Return the row of a stream that could not be read; it shows no other program's message."""
    from frazil.errors import hide_message  # noqa: PLC0415 - imported by the first request

    if isinstance(error, LateReadError):
        next_step = f"`frazil status {stream}` waits longer, `frazil doctor` checks the services"
        return StreamRow(stream, "no answer", why=str(error), next_step=next_step)
    failure = hide_message(error)
    return StreamRow(stream, failure.code, why=failure.facts, next_step=failure.next_step)


def read_row(stream: str) -> StreamRow:
    """Read the status of one stream.

    Raises:
        ConfigurationError: its file or a connection is wrong.
    """
    from frazil.observability.status import read_status  # noqa: PLC0415 - by the first request
    from frazil.workspace import open_workspace  # noqa: PLC0415

    status = read_status(open_workspace(stream, "page"))
    report = status.freshness
    return StreamRow(
        stream=stream,
        state=status.state,
        level=report.level,
        epoch=status.epoch,
        rows=status.rows,
        lag=report.lag_offsets,
        stream_clock_seconds=report.stream_clock_seconds,
        table_clock_seconds=report.table_clock_seconds,
        why=report.text,
        next_step=report.next_step,
        snapshot_id=status.snapshot_id,
    )


def render_page(rows: Sequence[StreamRow], at: datetime) -> str:
    """Render the page; browsers reload it every 15 seconds."""
    return render("streams.html", title="Streams", rows=rows, at=format_time(at))
