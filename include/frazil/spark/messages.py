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


class ProbeRequest(Message):
    """Connections that Spark tries: records of Kafka, and a table that it reads and appends to.

    `ranges` may be empty for topics without records: then Spark only describes the topic.
    """

    catalog: str
    table: str | None
    kafka_options: dict[str, str]
    ranges: dict[str, dict[int, tuple[int, int]]]
    session_conf: dict[str, str] = {}


class ProbeResult(Message):
    """What failed, as `encode_job_error` writes it; empty for what worked."""

    kafka: str = ""
    catalog: str = ""
