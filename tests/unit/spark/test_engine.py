"""How a job's process gets its request: by files that only its user can read."""

import stat
from pathlib import Path

from frazil.spark.engine import Engine
from frazil.spark.messages import ProbeRequest, ProbeResult


class ReadingEngine(Engine):
    """An engine whose job notes who may read its files."""

    modes: tuple[str, ...] = ()

    def _require_reachable(self) -> None:
        """Need no server."""

    def _describe(self) -> str:
        return "nowhere"

    def _run(self, command: list[str]) -> tuple[int, str]:
        request, result = Path(command[2]), Path(command[3])
        self.modes = tuple(stat.filemode(p.stat().st_mode) for p in (request.parent, request))
        result.write_text(ProbeResult().encode())
        return 0, ""


def test_a_request_with_secrets_is_readable_by_its_user_only() -> None:
    engine = ReadingEngine()
    options = {"kafka.sasl.jaas.config": "s3cret"}
    request = ProbeRequest(catalog="lake", table=None, kafka_options=options, ranges={})

    engine.run_job("probe_connections", request, ProbeResult)

    assert engine.modes == ("drwx------", "-rw-------")
