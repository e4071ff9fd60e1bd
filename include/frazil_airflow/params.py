"""Forms of manual DAGs: what was filled in becomes a message, or an error that names the field."""

from collections.abc import Mapping
from typing import TypeVar

from airflow.sdk import Param
from airflow.sdk.log import mask_secret
from pydantic import Field, ValidationError

from frazil.errors import ConfigurationError
from frazil.ledger.authors import Author
from frazil.ledger.offsets import RANGE_PATTERN
from frazil.maintenance.messages import ErasureRequest
from frazil.messages import Message
from frazil.streams.models import STREAM_NAME
from frazil_airflow.dag_loading import list_stream_names

Form = TypeVar("Form", bound=Message)


class StreamForm(Message):
    """What most forms ask: a stream by its name."""

    stream: str


class ReviewForm(StreamForm):
    """The review of a changed stream file; without an id, the one that waits now."""

    review: str | None = None


class DrillForm(StreamForm):
    """A drill, with the connections of a stream."""

    drill: str
    keep: bool = False


class ReadinessForm(Message):
    """The worst outage that retention has to cover, in hours."""

    outage_hours: int = Field(ge=1)


class MaintenanceForm(Message):
    """Whether maintenance only looks, and whether it compacts every file."""

    dry_run: bool
    rewrite_all: bool


class DecisionForm(StreamForm):
    """What a named person decides; name and reason are needed as soon as it is no dry run."""

    by: str = ""
    reason: str = ""
    dry_run: bool = True

    @property
    def author(self) -> Author | None:
        """Give who decides; nobody in a dry run, which only looks.

        Raises:
            ConfigurationError: it is no dry run, and name or reason are missing.
        """
        return None if self.dry_run else Author(self.by, self.reason)


class WaiverForm(DecisionForm):
    """The blocked batch that may pass."""

    batch: str


class AdoptionForm(DecisionForm):
    """Where another writer's rows keep their coordinates, and whether holes are given up."""

    columns: str | None = None
    accept_holes: bool = False


def ask_stream() -> Param:
    """Ask for a stream by its name; the files that are there are offered."""
    return Param(
        type="string",
        pattern=STREAM_NAME,
        title="Stream",
        description="Name of the stream, as in its file.",
        examples=list_stream_names(),
    )


def ask_dry_run(what: str) -> Param:
    """Ask whether to do it; the answer is no until somebody says otherwise."""
    description = f"Say what would {what}, and write nothing."
    return Param(default=True, type="boolean", title="Dry run", description=description)


def ask_maintenance() -> dict[str, Param]:
    """Ask how to maintain; the schedule takes what stands there."""
    asked = {
        "dry_run": "Say what each task would do, and write nothing.",
        "rewrite_all": "Compact every file, by the present partition spec and sort order.",
    }
    return {
        name: Param(
            default=False,
            type="boolean",
            title=name.replace("_", " ").capitalize(),
            description=description,
        )
        for name, description in asked.items()
    }


def ask_person(example: str, why: str = "Why") -> dict[str, Param]:
    """Ask who decides, and why; `example` is a reason."""
    asked = {"by": ("Who decides", "jane@example.org"), "reason": (why, example)}
    return {
        name: Param(
            default="",
            type="string",
            title=name.capitalize(),
            description=f"{question}: `{answer}`. Needed unless it is a dry run.",
        )
        for name, (question, answer) in asked.items()
    }


def ask_offsets(otherwise: str = "") -> Param:
    """Ask for exact ranges; `otherwise` says what a field left empty means."""
    form = "One range per line, the end exclusive: `flights:0:100-200`."
    return Param(
        default=None,
        type=["null", "array"],
        items={"type": "string", "pattern": RANGE_PATTERN},
        title="Offsets",
        description=f"{form} {otherwise}".strip(),
    )


def ask_instant(title: str, description: str) -> Param:
    """Ask for an instant that may be left out."""
    return Param(
        default=None,
        type=["null", "string"],
        format="date-time",
        title=title,
        description=f"{description} As `2026-01-31T08:00:00Z`.",
    )


def ask_text(title: str, description: str) -> Param:
    """Ask for a text that may be left out."""
    return Param(default=None, type=["null", "string"], title=title, description=description)


def ask_side(title: str, description: str) -> Param:
    """Ask for one side of a comparison; streams are offered, any table may be named."""
    return Param(
        type="string",
        minLength=1,
        title=title,
        description=description,
        examples=list_stream_names(),
    )


def read_form(form: type[Form], params: Mapping[str, object]) -> Form:
    """Read a run's parameters; fields that were left empty keep their defaults.

    The form checks types, the REST API takes any `conf`: so every field is looked at again here.

    Raises:
        ConfigurationError: unknown fields, missing ones, values of another type.
    """
    given = {name: value for name, value in params.items() if value not in (None, "")}
    try:
        return form.model_validate(given)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        known = ", ".join(name for name in form.model_fields if name != "v")
        raise ConfigurationError(
            f"the form cannot be read: {faults}", f"trigger again; the fields are {known}"
        ) from error


def read_erasure(params: Mapping[str, object]) -> ErasureRequest:
    """Read the form of an erasure, and keep its keys out of the task's log.

    Raises:
        ConfigurationError: see `read_form`.
    """
    request = read_form(ErasureRequest, params)
    for key in request.keys:
        mask_secret(key.partition("=")[2])
    return request
