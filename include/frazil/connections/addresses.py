"""Addresses of connections: host and port in the forms that Airflow's users write them."""

import re

from frazil.connections.lookup import Connection
from frazil.errors import ConfigurationError

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:\[\]/@,]+)(?::([0-9]{1,5}))?")
_MOST = 65_535


def join_address(connection: Connection, host: str, port: int | None = None) -> str:
    """Return an address with a port: that of the host, else `port`, else none.

    `host` is a name, an IPv4 or IPv6 address, or a URL of one, with user and path if it has them.

    Raises:
        ConfigurationError: it is no address, or it has another port. The error does not show it,
            because it may contain a password.
    """
    before, is_url, rest = host.strip().rpartition("://")
    place, slash, path = rest.partition("/")
    user, is_user, place = place.rpartition("@")
    if place.count(":") > 1 and not place.startswith("["):
        place = f"[{place}]"  # IPv6
    found = _PLACE.fullmatch(place)
    own = int(found[2]) if found and found[2] else None
    if not found or not 0 < (own or port or 1) <= _MOST:
        raise ConfigurationError(
            f"connection {connection.id!r}: one of its addresses is not a host and a port",
            "write the host as a name or an IP address such as host.example.org, the port as a "
            "number from 1 to 65535",
        )
    if own and port and own != port:
        raise ConfigurationError(
            f"connection {connection.id!r}: its host has the port {own}, and its port is {port}",
            "remove one of them",
        )
    number = own or port
    return f"{before}{is_url}{user}{is_user}{found[1]}{f':{number}' if number else ''}{slash}{path}"


def join_addresses(connection: Connection, hosts: str, port: int | None) -> str:
    """Return addresses that are separated by commas; those without a port get this one.

    Raises:
        ConfigurationError: as in `join_address`; only a single host is compared with the port.
    """
    listed = [host for host in hosts.split(",") if host.strip()] or [hosts]
    if len(listed) == 1:
        return join_address(connection, listed[0], port)
    return ",".join(add_port(connection, host, port) for host in listed)


def add_port(connection: Connection, host: str, port: int | None) -> str:
    """Return an address with its own port, or with this one.

    Raises:
        ConfigurationError: it is no address.
    """
    whole = join_address(connection, host)
    has_port = _PLACE.fullmatch(_find_place(whole))
    return whole if has_port and has_port[2] else join_address(connection, whole, port)


def _find_place(address: str) -> str:
    """Return host and port of an address, without scheme, user and path."""
    return address.rpartition("://")[2].partition("/")[0].rpartition("@")[2]


def split_address(address: str, default: int) -> tuple[str, int]:
    """Return host and port of an address that `join_address` returned; an IPv6 host has no bracket.

    Raises:
        ValueError: it has no host, or a port that is no number.
    """
    found = _PLACE.fullmatch(_find_place(address))
    if not found:
        message = f"{address!r} is not an address such as host.example.org:{default}"
        raise ValueError(message)
    return found[1].strip("[]"), int(found[2] or default)


def validate_no_login(connection: Connection, name: str, addresses: str) -> None:
    """Check that addresses have no user: the servers read none there, and errors show addresses.

    Raises:
        ConfigurationError: there is one; the error does not show it.
    """
    if "@" in addresses:
        raise ConfigurationError(
            f"connection {connection.id!r}: its `{name}` has a user or a password before a host",
            "write only host and port there, and login and password in fields of their own",
        )


def validate_unused_fields(connection: Connection, *names: str) -> None:
    """Check that fields of a connection which would have no effect are not set.

    Raises:
        ConfigurationError: one of them is set.
    """
    for name in names:
        if getattr(connection, name):
            raise ConfigurationError(
                f"connection {connection.id!r}: its {name} would have no effect",
                "remove it",
            )
