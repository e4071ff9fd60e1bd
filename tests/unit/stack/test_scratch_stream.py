"""The scratch topic of a drill where no broker answers."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from frazil.errors import KafkaUnavailableError
from frazil_stack.drills import scratch_stream
from frazil_stack.drills.scratch_stream import Scratch


def test_a_broker_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_stream, "_ADMIN_SECONDS", 0)
    admin = SimpleNamespace(create_topics=lambda _: {"s": Future[None]()})

    with pytest.raises(KafkaUnavailableError, match="creating the scratch topic: no answer within"):
        Scratch.create_topic(SimpleNamespace(name="s", admin=admin))  # type: ignore[arg-type]
