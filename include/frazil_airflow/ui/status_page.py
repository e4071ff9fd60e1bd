"""The page `/frazil/`: the status of every stream, read-only, for users who are logged in."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, cast

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse

from frazil.observability.parallel_reads import LateReadError, read_all
from frazil_airflow.connections import use_airflow_connections
from frazil_airflow.dag_loading import list_stream_names
from frazil_airflow.ui.app import App
from frazil_airflow.ui.rendering import TABLES_SECONDS, TIMEOUT_SECONDS, format_time, render
from frazil_airflow.ui.stream_page import RequestedOffset, show_stream

if TYPE_CHECKING:
    from frazil.observability.watch import Outages, TableReading
    from frazil.workspace import Workspace

    Opened = tuple[Workspace, TableReading]

Partition = Annotated[str, Query(pattern="^[0-9]{0,9}$")]
"""A form sends an empty text for a number that was not given."""


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
        partition: Partition = "",
        offset: str = "",
        topic: str = "",
    ) -> str:
        if stream not in list_readable(user):
            raise HTTPException(404, "no such stream, or its DAG is not visible to you")
        if not offset:
            return show_stream(stream)
        number = int(partition) if partition else None
        return show_stream(stream, RequestedOffset(number, offset.strip(), topic))

    return cast("App", app)


def list_readable(user: GetUserDep) -> list[str]:
    """List the streams whose ingest DAG a user may read."""
    dags = {f"ingest__{name}": name for name in list_stream_names()}
    readable = get_auth_manager().filter_authorized_dag_ids(dag_ids=set(dags), user=user)
    return sorted(dags[dag_id] for dag_id in readable)


def read_rows(streams: Sequence[str]) -> tuple[StreamRow, ...]:
    """Read the status of all streams in parallel: first the tables, then Kafka.

    So the facts of the tables are shown even if a broker does not answer. Once two streams found it
    down, the others do not wait for it. A failed read becomes a row with its error.
    """
    from frazil.observability.watch import Outages  # noqa: PLC0415 - imported by the first request

    use_airflow_connections()
    opened = {name: partial(open_stream, name) for name in streams}
    tables = read_all(opened, TABLES_SECONDS, TABLES_SECONDS)
    outages, found = Outages(), {n: r for n, r in tables.items() if not isinstance(r, Exception)}
    reads = {name: partial(read_row, *each, outages) for name, each in found.items()}
    rows = read_all(reads, TIMEOUT_SECONDS, TIMEOUT_SECONDS)
    return tuple(
        row if isinstance(row, StreamRow) else _explain(name, row, found.get(name))
        for name in streams
        if (row := rows.get(name, tables[name]))
    )


def _explain(stream: str, error: object, opened: "Opened | None") -> StreamRow:
    """Return the row of a stream that was not read completely, with the facts of its table.

    Error messages of other programs are hidden.
    """
    from frazil.errors import hide_message  # noqa: PLC0415 - imported by the first request

    facts = opened[1].facts if opened else None
    known = StreamRow(
        stream,
        "no answer",
        epoch=facts.state.epoch if facts and facts.state else None,
        rows=facts.rows if facts else None,
        snapshot_id=facts.snapshot_id if facts else None,
    )
    if isinstance(error, LateReadError):
        next_step = f"`frazil status {stream}` waits longer, `frazil doctor` checks the services"
        return replace(known, why=str(error), next_step=next_step)
    failure = hide_message(cast("Exception", error))
    return replace(known, state=failure.code, why=failure.facts, next_step=failure.next_step)


def open_stream(stream: str) -> "Opened":
    """Open one stream and read what its table says.

    Raises:
        ConfigurationError: its file is wrong.
    """
    from frazil.observability.watch import read_table  # noqa: PLC0415 - by the first request
    from frazil.workspace import open_workspace  # noqa: PLC0415

    work = open_workspace(stream, "page")
    return work, read_table(work)


def read_row(work: "Workspace", reading: "TableReading", outages: "Outages") -> StreamRow:
    """Read the status of one stream whose table was read.

    Raises:
        ConfigurationError: a connection is wrong.
    """
    from frazil.observability.status import read_status  # noqa: PLC0415 - by the first request

    status, stream = read_status(work, reading, outages), work.stream.stream
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
