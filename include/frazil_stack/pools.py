"""Keep one Airflow pool of one slot per table, and one for backfills, while the stack runs.

A task that names a pool which does not exist waits for ever, and stream files come and go while
Airflow runs. Started by supervisor as `python -m frazil_stack.pools`.
"""

import json
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from frazil.connections import home_dir, streams_dir
from frazil_stack.credentials import AIRFLOW_USER, PASSWORD_FILE
from frazil_stack.ports import DIRECT

INTERVAL_SECONDS = 10.0
RECHECK_SECONDS = 60.0
POOL_PREFIX = "frazil_"
BACKFILL_POOL = "frazil_backfill"

_TIMEOUT_SECONDS = 10.0
_PAGE = 100
_CONFLICT = 409
_UNAUTHORIZED = 401
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

log = logging.getLogger("frazil.pools")


def pool_name(table: str) -> str:
    """Name the pool of a table: `demo.flights` has `frazil_demo_flights`."""
    return POOL_PREFIX + table.replace(".", "_")


def wanted_pools(streams: Path) -> frozenset[str]:
    """Name the pools of all tables that stream files fill, and that of backfills."""
    files = sorted(streams.glob("*.yaml"))
    tables = frozenset(pool_name(table) for path in files for table in _tables(path))
    return tables | {BACKFILL_POOL}


def _tables(path: Path) -> Iterator[str]:
    """Read the table names of one stream file, and nothing else of it."""
    try:
        content = yaml.load(path.read_bytes(), Loader=_LOADER)  # noqa: S506 - a safe loader
    except (OSError, yaml.YAMLError):
        return
    if not isinstance(content, dict):
        return
    table, route = content.get("table"), content.get("route")
    names: list[object] = [table.get("name")] if isinstance(table, dict) else []
    routed = route.get("tables") if isinstance(route, dict) else None
    names += list(routed.values()) if isinstance(routed, dict) else []
    yield from (name for name in names if isinstance(name, str) and name)


class PoolClient:
    """Airflow's REST API, as far as pools go."""

    def __init__(self, url: str, user: str, password: str) -> None:
        """Keep the address; the first call logs in."""
        self._url = url
        self._login = {"username": user, "password": password}
        self._token: str | None = None

    def fetch_pools(self) -> frozenset[str]:
        """List the names of Frazil's pools."""
        names: set[str] = set()
        while True:
            query = urllib.parse.urlencode(
                {"limit": _PAGE, "offset": len(names), "pool_name_pattern": f"{POOL_PREFIX}%"}
            )
            page = self._call("GET", f"/api/v2/pools?{query}")
            pools = page["pools"]
            if isinstance(pools, list):
                names.update(pool["name"] for pool in pools)
            if not pools or page["total_entries"] == len(names):
                return frozenset(names)

    def create_pool(self, name: str) -> None:
        """Create a pool of one slot; one that exists already is as good."""
        body = {
            "name": name,
            "slots": 1,
            "description": "One job at a time",
            "include_deferred": True,
        }
        try:
            self._call("POST", "/api/v2/pools", body)
        except urllib.error.HTTPError as error:
            if error.code != _CONFLICT:
                raise

    def _call(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> Mapping[str, object]:
        """Call the API, logging in first, and once more when the token has expired."""
        if self._token is None:
            self._token = str(self._send("POST", "/auth/token", self._login)["access_token"])
        try:
            return self._send(method, path, body)
        except urllib.error.HTTPError as error:
            if error.code == _UNAUTHORIZED:
                self._token = None
            raise

    def _send(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> Mapping[str, object]:
        """Send one request and read its JSON answer."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(  # noqa: S310 - our own http address
            self._url + path, data=data, headers=headers, method=method
        )
        with DIRECT.open(request, timeout=_TIMEOUT_SECONDS) as response:
            answer = json.load(response)
        return answer if isinstance(answer, dict) else {}


def sync_pools(client: PoolClient, wanted: frozenset[str]) -> tuple[str, ...]:
    """Create the pools that are missing and name them; none is ever removed or resized."""
    missing = tuple(sorted(wanted - client.fetch_pools())) if wanted else ()
    for name in missing:
        client.create_pool(name)
    return missing


def main() -> None:
    """Look at the files every ten seconds, and at Airflow when they changed or once a minute."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    client = connect_pools(home_dir())
    streams, trouble = streams_dir(), ""
    synced: frozenset[str] = frozenset()
    looked_at = -RECHECK_SECONDS
    while True:
        wanted = wanted_pools(streams)
        try:
            if wanted != synced or time.monotonic() - looked_at >= RECHECK_SECONDS:
                for name in sync_pools(client, wanted):
                    log.info("created pool %s", name)
                synced, looked_at, trouble = wanted, time.monotonic(), ""
        except (OSError, ValueError, KeyError) as error:
            if str(error) != trouble:
                log.warning("cannot ask Airflow for its pools, will ask again: %s", error)
            trouble = str(error)
        time.sleep(INTERVAL_SECONDS)


def connect_pools(home: Path) -> PoolClient:
    """Prepare a client for the Airflow of this home."""
    password = (home / "airflow" / PASSWORD_FILE).read_text().strip()
    stack = json.loads((home / "stack" / "stack.json").read_text())
    return PoolClient(stack["airflow"]["url"], AIRFLOW_USER, password)


if __name__ == "__main__":
    main()
