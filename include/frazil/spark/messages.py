"""The messages of the Spark job `run_parts`, which runs another job for parts of its input."""

from frazil.messages import Message


class PartsRequest(Message):
    """The request of `run_parts`: a job's requests as JSON, to be run one after the other."""

    stream: str
    job: str
    parts: tuple[str, ...]


class PartsResult(Message):
    """The results of the parts as JSON, each that of the job or its error.

    It ends with the part during which the Spark server ended.
    """

    results: tuple[str, ...]
