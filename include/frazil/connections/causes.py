"""Why a server cannot be used: the cause in one sentence, and what to do next.

Clients name the same cause by different texts. The tables know those of librdkafka, PyIceberg,
PyArrow, database drivers and Java, so that each command and each client says the same sentence.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Server = Literal["catalog", "storage", "registry", "database"]


@dataclass(frozen=True)
class Cause:
    """A cause as a sentence, its next step, and whether waiting longer cannot help."""

    sentence: str
    next_step: str
    is_decisive: bool = True


Table = tuple[tuple[str, Cause], ...]
"""Texts of clients, as regular expressions, and their cause; the first match counts."""

EXPIRED_CERTIFICATE = (
    r"certificate has expired|CertificateExpired|NotAfter|validity check failed|"
    r"certificate is not yet valid|CertificateNotYetValid"
)
OTHER_HOST_NAME = (
    r"[Hh]ostname mismatch|IP address mismatch|No subject alternative|No name matching|"
    r"does not match host name|could not be verified by hostnameverifier|"
    r"doesn't match any of the subject alternative|no alternative certificate subject name"
)
UNKNOWN_AUTHORITY = (
    r"PKIX path building failed|certificate verify failed|self.signed certificate|"
    r"unable to get (local )?issuer|SSL peer certificate|SSL certificate OpenSSL verify|"
    r"(SSL )?root certificate file"
)
OTHER_PROTOCOL = r"Unsupported or unrecognized SSL message|[Ww]rong.version.number"
UNKNOWN_HOST = (
    r"Failed to resolve|No resolvable bootstrap urls|UnknownHostException|"
    r"could not translate host name|Could not resolve host|failed to resolve sockaddr|"
    r"Name or service not known|name resolution|nodename nor servname|Unknown MySQL server host"
)
REFUSED = r"[Cc]onnection refused"
NO_ROUTE = (
    r"setup timed out|No route to host|[Nn]etwork is unreachable|Host is unreachable|"
    r"[Cc]onnect(ion)? timed out|ConnectTimeout|timeout expired|curlCode: 28"
)
NOT_OF_A_REGISTRY = "no answer of a schema registry"
"""What the registry's client says of an answer that its library accepts."""

_SERVERS: Table = (
    (
        EXPIRED_CERTIFICATE,
        Cause(
            "the {server}'s certificate has expired, or is not valid yet",
            "renew that certificate, or correct this machine's clock",
        ),
    ),
    (
        OTHER_HOST_NAME,
        Cause(
            "the {server}'s certificate is for another host name",
            "use the name of the certificate in the connection's address",
        ),
    ),
    (
        UNKNOWN_AUTHORITY,
        Cause(
            "the {server}'s certificate is not signed by an authority that is trusted here",
            "{authority}",
        ),
    ),
    (
        OTHER_PROTOCOL,
        Cause(
            "the {server} does not use TLS, but its address begins with `https`",
            "write `http` in the connection's address, or the port that uses TLS",
        ),
    ),
    (
        (
            r"Remote end closed connection|Server disconnected without|Empty reply from server|"
            r"RemoteDisconnected|NoHttpResponseException|ReadError: \[Errno 104\]"
        ),
        Cause(
            "the {server} closes the connection without an answer, as a TLS-only server does",
            "write `https` in the connection's address if the {server} uses TLS, otherwise see "
            "its log",
        ),
    ),
    (
        (
            r"Unable to locate credentials|Unable to load credentials|NoCredentials|"
            r"ProfileNotFound|fe_sendauth: no password"
        ),
        Cause(
            "the connection and this machine's environment have no credentials for the {server}",
            "set login and password, `s3.access-key-id` and `s3.secret-access-key`, or give the "
            "machine a role",
        ),
    ),
    (
        r"ExpiredToken|EXPIRED_TOKEN|AuthorizationExpired|token.{1,20}expired",
        Cause(
            "the token or the temporary key for the {server} has expired",
            "renew it in the connection{vended}",
        ),
    ),
    (
        (
            r"password authentication failed|no pg_hba\.conf entry|role \S+ does not exist|"
            r"Access denied for user|NotAuthorized|Unauthorized|invalid_client|OAuthError|"
            r"[Ss]ignature_?[Dd]oes_?[Nn]ot_?[Mm]atch|SIGNATURE_DOES_NOT_MATCH|InvalidSignature|"
            r"Invalid_?AccessKey|INVALID_ACCESS_KEY|UserNotFound|No user exists|UnrecognizedClient|"
            r"UNRECOGNIZED_CLIENT|request signature we calculated|"
            r"Access Key Id you provided does not exist|InvalidToken|token is malformed"
        ),
        Cause(
            "the {server} refuses the login, the password, the key or the token",
            "correct them in the connection{vended}",
        ),
    ),
    (
        (
            r"AuthorizationHeaderMalformed|authorization header is malformed|"
            r"must specify a region|PermanentRedirect|IllegalLocation"
        ),
        Cause("the region of the {server} is missing or wrong", "set `{region}`"),
    ),
    (
        r"NO_SUCH_BUCKET|NoSuchBucket|specified bucket does not exist",
        Cause("the bucket does not exist", "create it, or correct `warehouse` of the connection"),
    ),
    (
        (
            r"NoSuchWarehouseException|RESTError: (NotFound|\w*Warehouse)|"
            r"Unable to find warehouse"
        ),
        Cause(
            "the catalog does not know the warehouse",
            "correct `warehouse` of the connection: many catalogs want a name there, not a folder",
        ),
    ),
    (
        r"database \S+ does not exist|Unknown database",
        Cause("the database does not exist", "create it, or correct {address} of the connection"),
    ),
    (
        r"unable to open database file|SQLITE_CANTOPEN",
        Cause(
            "the file of the catalog cannot be opened",
            "create its folder with write access for this user, or correct `uri` of the connection",
        ),
    ),
    # The answer to a HEAD request has no text, only a number.
    (
        r"(Forbidden|null) \(Service: S3, Status Code: 403",
        Cause(
            "the {server} refuses the login, the password, the key or the token, or the "
            "connection's user has no right to this in the {server}",
            "correct them in the connection, or {rights}{vended}",
        ),
    ),
    (
        (
            r"permission denied for|InsufficientPrivilege|command denied to user|Forbidden|"
            r"AccessDenied|ACCESS_DENIED|Access Denied|Status Code: 403|not authorized to perform"
        ),
        Cause(
            "the connection's user has no right to this in the {server}",
            "{rights}{vended}",
        ),
    ),
    (
        r"(Bad Request|null) \(Service: S3, Status Code: 400|Service: S3, Status Code: 301",
        Cause(
            "the region of the {server} is missing or wrong, or the temporary key has expired",
            "set `{region}`, or renew the key in the connection{vended}",
        ),
    ),
    (
        (
            r"[Rr]ead timed out|ReadTimeout|SocketTimeoutException|Read timeout|"
            r"did not receive a response"
        ),
        Cause(
            "the {server} accepts connections and does not answer",
            "see its log, then run again",
            is_decisive=False,
        ),
    ),
    (
        UNKNOWN_HOST,
        Cause(
            "the {server}'s host name is unknown here",
            "correct the address in the connection, or the name service of this machine",
            is_decisive=False,
        ),
    ),
    (
        REFUSED,
        Cause(
            "nothing listens at the {server}'s address",
            "start the {server} (`frazil stack up` if it is the embedded one), or correct the "
            "address in the connection",
            is_decisive=False,
        ),
    ),
    (
        f"{NO_ROUTE}|Could not connect to any of|Can't connect to MySQL server",
        Cause(
            "no route to the {server}: its host does not answer to connections",
            "check network, firewall and the address in the connection",
            is_decisive=False,
        ),
    ),
    # curl has one code and one text for both.
    (
        r"curlCode: 7,|Failed to connect to",
        Cause(
            "nothing listens at the {server}'s address, or there is no route to the {server}",
            "start the {server} (`frazil stack up` if it is the embedded one), or check network, "
            "firewall and the address in the connection",
            is_decisive=False,
        ),
    ),
    (
        (
            r"Invalid JSON|JSONDecodeError|JsonParseException|ConfigResponse|JSON Payload: <|"
            r"Unable to process \(code: 404, type: null\)|"
            rf"illegal (request|status) line|BadStatusLine|{NOT_OF_A_REGISTRY}"
        ),
        Cause(
            "the server at this address is not a {server}",
            "correct the address in the connection: path, port and proxy",
        ),
    ),
)

_WORDS: dict[Server, dict[str, str]] = {
    "catalog": {
        "authority": "add the authority to the file that `REQUESTS_CA_BUNDLE` names, or name it by "
        "`sslrootcert` in a database's `uri`; Spark has its own in the trust store of its Java",
        "region": "client.region",
        "rights": "grant it the right to namespaces and tables of the stream",
    },
    "storage": {
        "authority": "add the authority to those of this machine and to the trust store of Spark's "
        "Java",
        "region": "s3.region",
        "rights": "grant it the right to list, read, write and delete below `warehouse`",
        "vended": "; if the catalog issues the keys, they expired during the step: run again, and "
        "if that fails too, set a smaller `batch.max_records` or let the catalog renew them "
        "(docs/connections.md)",
    },
    "registry": {
        "authority": "set `ssl.ca.location` to the PEM file of the authority that signed it",
        "region": "region",
        "rights": "grant it the right to read the stream's subjects",
    },
    "database": {
        "authority": "set `sslrootcert` in the extra to the PEM file of the authority that signed "
        "it",
        "region": "region",
        "rights": "grant it the right to read the source table",
        "address": "`schema` (the database)",
    },
}


def find_cause(table: Table, text: str) -> Cause | None:
    """Return the first cause of a table whose signs are in a text; None if there is none."""
    return next((cause for signs, cause in table if re.search(signs, text)), None)


def explain_text(server: Server, text: str) -> Cause | None:
    """Return why a server cannot be used, by the text of a client's error; None if unknown."""
    cause = find_cause(_SERVERS, text)
    if cause is None:
        return None
    words = {"server": server, "address": "`uri`", "vended": "", **_WORDS[server]}
    return replace(
        cause,
        sentence=cause.sentence.format(**words),
        next_step=cause.next_step.format(**words),
    )


def explain_error(server: Server, error: BaseException) -> Cause | None:
    """Return why a server cannot be used, by an error and those below it; None if unknown."""
    return explain_text(server, "\n".join(_read_chain(error)))


def _read_chain(error: BaseException | None) -> Iterator[str]:
    """Yield class and text of an error and of its causes; clients leave the cause out of texts."""
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or error.__context__


_JAVA_LINE = re.compile(
    r"^(?:Caused by: |\()?(?:org\.apache\.(?:iceberg|hc|thrift|hadoop\.hive)|org\.postgresql|"
    r"com\.mysql|software\.amazon|java\.net|java\.security|javax\.net\.ssl|sun\.security)\.[\w.$]+[^\n]*",
    re.MULTILINE,
)
_JAVA_OWNERS: tuple[tuple[Server, str], ...] = (
    ("storage", r"services\.s3\.|iceberg\.aws\.s3\.|Service: S3\b"),
    ("catalog", r"org\.apache\.iceberg\.|org\.postgresql|com\.mysql|services\.glue|thrift"),
    ("storage", r"software\.amazon\."),
)
"""Which server the classes of a chain of Java exceptions are of; the first match counts."""


def explain_java(text: str) -> tuple[Server, Cause] | None:
    """Return the server that a chain of Java exceptions is about, and why it cannot be used."""
    lines = "\n".join(match.group() for match in _JAVA_LINE.finditer(text))
    for server, signs in _JAVA_OWNERS:
        if re.search(signs, lines):
            cause = explain_text(server, lines)
            return (server, cause) if cause else None
    return None
