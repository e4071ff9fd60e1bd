"""The freshness of all streams in one task.

With a hundred streams, one task per stream and minute was a fifth of Airflow's work.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime

from frazil.environment import streams_dir
from frazil.errors import FrazilError, hide_message
from frazil.events import note_watch
from frazil.observability.freshness import judge_freshness
from frazil.observability.watch import gather_freshness_facts
from frazil.streams.loading import list_pattern_files, load_readable_streams
from frazil.streams.models import Stream
from frazil.workspace import Workspace, open_workspace, refresh_topics
from frazil_airflow.dag_runs import find_awaited_pool, is_paused
from frazil_airflow.metrics import send_gauges
from frazil_airflow.outcomes import choose_log_level

PARALLEL_CHECKS = 4
"""A check waits for Kafka and the catalog most of its time."""

TIMEOUT_SECONDS = 120.0
"""For all streams together: a check that hangs must not delay the others' failures."""

FAILURES_OF_ONE_PART = 2
"""Streams that find a broker or catalog down before further streams no longer try it."""

log = logging.getLogger(__name__)


def refresh_topic_lists() -> None:
    """Refresh the topics of each stream file with a pattern; a failure is logged.

    If broker or catalog is down, the streams of the previous list report it in their own checks.
    """
    for path in list_pattern_files(streams_dir()):
        try:
            found = refresh_topics(path)
        except FrazilError as error:
            log.warning("topics of %s were not refreshed: %s", path.stem, error)
        else:
            log.info("%s", found.text if found else f"{path.stem} has no pattern")


def find_failing(streams: Sequence[str], run_id: str) -> list[str]:
    """Check each stream, log its freshness, and return the names of those that fail.

    A stream fails if its delay is too long, its file is broken, its broker or catalog does not
    answer, or its check did not end in time. Streams of a broker or catalog that is known to be
    down fail without another wait.
    """
    down: Counter[str] = Counter()
    paused: set[str] = set()
    pool = ThreadPoolExecutor(PARALLEL_CHECKS)
    loaded = _load_streams()
    checks = {
        name: pool.submit(_passes, loaded.get(name, name), run_id, down, paused) for name in streams
    }
    done, _ = wait(checks.values(), TIMEOUT_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    late = [stream for stream, check in checks.items() if check not in done]
    if late:
        log.warning("not checked within %d s: %s", TIMEOUT_SECONDS, ", ".join(late))
    failing = [name for name, check in checks.items() if check not in done or not check.result()]
    note_watch(paused)
    log.info("failing streams: %d of %d", len(failing), len(streams))
    return failing


def _load_streams() -> dict[str, Stream]:
    """Load the streams by name, once: each topic of a pattern alone would expand all of them."""
    try:
        streams, _ = load_readable_streams(streams_dir())
    except Exception:  # noqa: BLE001 - the check of each stream says why
        return {}
    return {stream.stream: stream for stream in streams}


def _passes(given: Stream | str, run_id: str, down: Counter[str], paused: set[str]) -> bool:
    """Check one stream; return False after any error, which the stream's own task then shows.

    A stream that is not readable is given by its name.
    """
    stream = given if isinstance(given, str) else given.stream
    try:
        work = _open_workspace(given, run_id)
        source, table = work.stream.source.connection, work.stream.table.connection
        parts = {"kafka_down": f"broker of {source}", "catalog_down": f"catalog of {table}"}
        if any(down[part] >= FAILURES_OF_ONE_PART for part in parts.values()):
            return False
        facts, limits, now = gather_freshness_facts(work), work.stream.freshness, datetime.now(UTC)
        report = judge_freshness(facts, limits, now)
        if report.level != "ok" and is_paused(f"ingest__{stream}"):
            paused.add(stream)
            report = judge_freshness(replace(facts, is_paused=True), limits, now)
        elif report.level != "ok" and (pool := find_awaited_pool(work.stream)):
            report = judge_freshness(replace(facts, pool=pool), limits, now)
        send_gauges(report)
    except Exception as error:  # noqa: BLE001 - the other streams are checked all the same
        log.warning("%s: %s", stream, hide_message(error))
        return False
    log.log(choose_log_level(report), "%s", report.text)
    down.update([parts[report.cause]] if report.cause in parts else [])
    return report.level != "fail"


def _open_workspace(given: Stream | str, run_id: str) -> Workspace:
    """Return the workspace of one check, whose clients end with it."""
    if isinstance(given, str):
        return open_workspace(given, run_id)
    return Workspace(given, streams_dir(), run_id)
