"""A merge that a compaction of the state table overtakes, on a real Spark."""

from typing import TypeVar

from frazil.maintenance.messages import TableResult
from frazil.maintenance.tables import new_request
from frazil.messages import Message
from frazil.workspace import Workspace

Result = TypeVar("Result", bound=Message)


class Overtaking:
    """The engine of a workspace; a compaction lands behind the first stage of a merge."""

    def __init__(self, work: Workspace) -> None:
        """Begin with nothing staged."""
        self._work, self._engine, self.staged = work, work.engine, 0

    def run_job(self, name: str, request: Message, result: type[Result]) -> Result:
        answer = self._engine.run_job(name, request, result)
        self.staged += 1
        if self.staged == 1:
            state = self._work.stream.table.state
            assert state is not None
            wanted = new_request(self._work, state.name)
            wanted = wanted.model_copy(update={"rewrite_all": True, "dry_run": False})
            self._engine.run_job("compact_table", wanted, TableResult)
        return answer
