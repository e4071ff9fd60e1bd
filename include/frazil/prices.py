"""What things cost where the stack runs: a small file, and the money that follows from it."""

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frazil.errors import ConfigurationError

SECONDS_PER_HOUR = 3600
DAYS_PER_MONTH = 30
GB = 1_000_000_000
MILLION = 1_000_000


class Prices(BaseModel):
    """Prices without tax; what is left out costs nothing.

    GB are 10⁹ bytes, a month has 30 days, a request is a call of Kafka or the catalog, or a file
    that is opened or written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    currency: str = Field("", max_length=12)
    cpu_core_hour: float = Field(0, ge=0)
    storage_gb_month: float = Field(0, ge=0)
    written_gb: float = Field(0, ge=0)
    requests_million: float = Field(0, ge=0)


class Money(BaseModel):
    """Money by what it is paid for."""

    model_config = ConfigDict(frozen=True)

    cpu: float
    storage: float
    written: float
    requests: float
    total: float


def load_prices(path: Path) -> Prices:
    """Read a file of prices.

    Raises:
        ConfigurationError: it is not there, no YAML, or a field is wrong; names each of them.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise _wrong(path, f"cannot be read: {reason}") from error
    try:
        return Prices.model_validate(content or {})
    except ValidationError as error:
        told = (f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise _wrong(path, "; ".join(told)) from error


def _wrong(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"prices {path}: {reason}",
        f"write numbers of 0 or more for {', '.join(sorted(set(Prices.model_fields)))}; "
        "docs/prices.yaml is an example",
    )


def price(
    prices: Prices,
    *,
    cpu_seconds: float = 0,
    bytes_live: float = 0,
    bytes_written: float = 0,
    requests: float = 0,
) -> Money:
    """Price a day's use; `bytes_live` are kept for the day."""
    cpu = cpu_seconds / SECONDS_PER_HOUR * prices.cpu_core_hour
    storage = bytes_live / GB * prices.storage_gb_month / DAYS_PER_MONTH
    written = bytes_written / GB * prices.written_gb
    asked = requests / MILLION * prices.requests_million
    return Money(
        cpu=cpu,
        storage=storage,
        written=written,
        requests=asked,
        total=cpu + storage + written + asked,
    )
