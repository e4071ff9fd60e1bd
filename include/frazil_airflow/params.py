"""Forms of DAGs: their fields, and the run's parameters as a checked message."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow.sdk import Param
from airflow.sdk.log import mask_secret
from pydantic import Field, ValidationError

from frazil.errors import ConfigurationError
from frazil.ledger.authors import Author
from frazil.ledger.offsets import RANGE_PATTERN
from frazil.maintenance.messages import ErasureRequest
from frazil.messages import Message, read_reason
from frazil.streams.models import STREAM_NAME
from frazil_airflow.dag_loading import list_stream_names

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Params: TypeAlias = Mapping[str, object]
"""The parameters of a run, as Airflow hands them to a task."""

Form = TypeVar("Form", bound=Message)


class StreamForm(Message):
    """The name of a stream."""

    stream: str


class ReviewForm(StreamForm):
    """The review of a schema change; without an id, the pending one."""

    review: str | None = None


class DrillForm(StreamForm):
    """A drill, and the stream whose connections it uses."""

    drill: str
    keep: bool = False


class ReadinessForm(Message):
    """The longest outage that Kafka's retention must cover, in hours."""

    outage_hours: int = Field(ge=1)


class MaintenanceForm(Message):
    """Whether maintenance is a dry run, and whether it rewrites every file."""

    dry_run: bool
    rewrite_all: bool


class MergeForm(StreamForm):
    """A merge: whether it folds all changes again, and whether it is only previewed."""

    rebuild: bool = False
    dry_run: bool = True


class DecisionForm(StreamForm):
    """A decision; name and reason are required unless it is a dry run."""

    by: str = ""
    reason: str = ""
    dry_run: bool = True

    @property
    def author(self) -> Author | None:
        """Return who decides and why; None in a dry run.

        Raises:
            ConfigurationError: name or reason is missing, and it is not a dry run.
        """
        return None if self.dry_run else Author(self.by, self.reason)


class WaiverForm(DecisionForm):
    """The blocked batch to waive."""

    batch: str


class GapForm(DecisionForm):
    """Whether the merges of a state table may end with the gap."""

    stop_merges: bool = False


class AdoptionForm(DecisionForm):
    """The columns with the rows' Kafka coordinates, and whether missing offsets are accepted."""

    columns: str | None = None
    accept_holes: bool = False


def stream_param() -> Param:
    """Return the field for a stream's name, with the names of all stream files as examples."""
    return Param(
        type="string",
        pattern=STREAM_NAME,
        title="Stream",
        description="Name of the stream, as in its file.",
        examples=list_stream_names(),
    )


def flag_param(title: str, description: str, *, default: bool = False) -> Param:
    """Return a field for yes or no."""
    return Param(default=default, type="boolean", title=title, description=description)


def dry_run_param(*, default: bool = True) -> Param:
    """Return the field that makes a run a preview."""
    return flag_param("Dry run", "Preview only; nothing is changed.", default=default)


def maintenance_params() -> dict[str, Param]:
    """Return the form of maintenance; scheduled runs use its defaults."""
    rewrite_all = "Rewrite every file with the current partition spec and sort order."
    return {
        "dry_run": dry_run_param(default=False),
        "rewrite_all": flag_param("Rewrite all", rewrite_all),
    }


def reason_param(description: str) -> Param:
    """Return the field for the reason of a decision; who decides is the user of the run."""
    return text_param("Reason", f"{description} Required unless Dry run is on.")


def offsets_param(meaning: str = "") -> Param:
    """Return the field for offset ranges; `meaning` describes them and an empty field."""
    example = "One range or offset per line: `flights:0:100-200` (exclusive end), `flights:0:4711`."
    return Param(
        default=None,
        type=["null", "array"],
        items={"type": "string", "pattern": RANGE_PATTERN},
        title="Offsets",
        description=f"{example} {meaning}".strip(),
    )


def instant_param(title: str, description: str) -> Param:
    """Return an optional field for an instant."""
    return text_param(title, f"{description} Example: `2026-01-31T08:00:00Z`.", format="date-time")


def count_param(title: str, description: str, *, minimum: int) -> Param:
    """Return an optional field for a number."""
    return Param(
        default=None,
        type=["null", "integer"],
        minimum=minimum,
        title=title,
        description=description,
    )


def text_param(title: str, description: str, **schema: str) -> Param:
    """Return an optional field for a text; `schema` adds JSON Schema keywords."""
    form: dict[str, Any] = {"type": ["null", "string"], **schema}
    return Param(default=None, title=title, description=description, **form)


def table_param(title: str, description: str) -> Param:
    """Return the field for a table or a stream, with the names of all streams as examples."""
    return Param(
        type="string",
        minLength=1,
        title=title,
        description=description,
        examples=list_stream_names(),
    )


def read_form(form: type[Form], params: Params) -> Form:
    """Read a run's parameters; an empty field gets its default.

    The web form checks types; the REST API accepts any `conf`, so every field is checked again.

    Raises:
        ConfigurationError: a field is unknown or missing, or has a value of another type.
    """
    given = {name: value for name, value in params.items() if value not in (None, "")}
    try:
        return form.model_validate(given)
    except ValidationError as error:
        action = params.action if isinstance(params, ActionFields) else ""
        unseen = {"v", "by", "stream"} if action else {"v", "by"}
        known = ", ".join(name for name in form.model_fields if name not in unseen)
        raise ConfigurationError(
            " ".join(_describe_faults(error.errors(), action)),
            f"trigger the DAG again with these fields: {known}",
        ) from error


class ActionFields(dict[str, object]):
    """The filled-in fields of `operate__<stream>`, for the form of its action."""

    def __init__(self, action: str, fields: Params) -> None:
        """Store the fields, and which action has them."""
        super().__init__(fields)
        self.action = action


def choose_fields(stream: str, params: Params) -> ActionFields:
    """Return the filled-in fields of `operate__<stream>`, for the form of its action.

    Raises:
        ConfigurationError: the form names another stream.
    """
    if params.get("stream") not in (None, stream):
        raise ConfigurationError(
            f"stream: this DAG operates {stream} only; nothing was written",
            f"trigger the DAG of {params['stream']}, if you have the right",
        )
    hidden = {"action", "by"}
    filled = {
        name: value
        for name, value in params.items()
        if name not in hidden and value is not None and value is not False and value not in ("", [])
    }
    author = {"by": params["by"]} if "reason" in filled else {}
    own = {"stream": stream, "dry_run": params["dry_run"]}
    return ActionFields(str(params["action"]), filled | author | own)


def _describe_faults(faults: "Sequence[ErrorDetails]", action: str) -> Iterator[str]:
    """Yield a sentence for each error; not for `by`, if it only accompanies a refused reason."""
    unknown = {fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"}
    for fault in faults:
        field = ".".join(map(str, fault["loc"]))
        if fault["type"] == "missing":
            yield f"Missing field: {field}."
        elif fault["type"] != "extra_forbidden":
            yield f"{field}: {read_reason(fault)}.".removeprefix(": ")
        elif field != "by" or ("reason",) not in unknown:
            yield f"action {action} takes no {field}." if action else f"Unknown field: {field}."


def read_erasure(params: Params) -> ErasureRequest:
    """Read the form of an erasure, and mask its keys in the task's log.

    Raises:
        ConfigurationError: see `read_form`.
    """
    request = read_form(ErasureRequest, params)
    for key in request.keys:
        mask_secret(key.partition("=")[2])
    return request
