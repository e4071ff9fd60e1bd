"""A limit of time for requests to a catalog: PyIceberg's clients of REST and Hive have none."""

import threading
from collections.abc import Callable
from typing import TypeVar

from frazil.errors import CatalogUnavailableError

ANSWER_SECONDS = 120.0
"""A load balancer gives up after 60 seconds; large tables take longer than that to read."""

Result = TypeVar("Result")


def wait_for_answer(doing: str, request: Callable[[], Result]) -> Result:
    """Return what a request returns, if it ends within two minutes.

    It must be one that only reads: after the limit its thread waits on, until the server closes
    the connection or this process ends.

    Raises:
        CatalogUnavailableError: it did not end in time.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(request())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="catalog request", daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if errors:
        raise errors[0]
    if not results:
        raise CatalogUnavailableError(
            f"{doing}: the catalog accepts connections and does not answer (for "
            f"{ANSWER_SECONDS:.0f} s)",
            "see its log, then run again; nothing was published, the next run plans the same range "
            "again",
        )
    return results[0]
