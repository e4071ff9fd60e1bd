"""Each cause has one sentence, whichever client names it; the texts are those of real servers."""

import pytest

from frazil.connections.causes import Server, explain_error, explain_java, explain_text

S3 = "When getting information for key 'lake/a/b/metadata/0.metadata.json' in bucket 'good': "
CURL = f"{S3}AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: "
POSTGRES = "(psycopg2.OperationalError) connection to server at "
GLUE = "An error occurred ({name}) when calling the GetDatabases operation: no"
VERIFY = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
REST = "HTTPSConnectionPool(host='c', port=443): Max retries exceeded with url: /v1/config "

TEXTS: tuple[tuple[str, dict[Server, tuple[str, ...]]], ...] = (
    (
        "refuses the login, the password, the key or the token",
        {
            "catalog": (
                f'{POSTGRES}"h", failed: FATAL:  password authentication failed for user',
                "UnauthorizedError: NotAuthorizedException: no token",
                "OAuthError: invalid_client: x",
                GLUE.format(name="UnrecognizedClientException"),
                GLUE.format(name="InvalidSignatureException"),
                "(pymysql.err.OperationalError) (1045, \"Access denied for user 'me'@'h'\")",
            ),
            "storage": (
                f"{S3}AWS Error SIGNATURE_DOES_NOT_MATCH during ListObjectsV2 operation: The",
                f"{S3}AWS Error UNKNOWN: Unable to parse ExceptionName: XAdminUserNotFound",
            ),
        },
    ),
    (
        "connection's user has no right to this",
        {
            "catalog": (
                "(psycopg2.errors.InsufficientPrivilege) permission denied for table t",
                "ForbiddenError: ForbiddenException: not allowed",
                GLUE.format(name="AccessDeniedException"),
            ),
            "storage": (f"{S3}AWS Error ACCESS_DENIED during ListObjectsV2 operation: Denied",),
        },
    ),
    (
        "not signed by an authority that is trusted here",
        {
            "catalog": (
                f"{REST}(Caused by SSLError({VERIFY}unable to get local issuer certificate",
                f'{POSTGRES}"h" (10.0.0.1), port 5432 failed: SSL error: certificate verify failed',
            ),
            "storage": (f"{CURL}60, SSL peer certificate or SSH remote key was not OK",),
            "registry": (f"ConnectError: {VERIFY}unable to get local issuer certificate",),
        },
    ),
    (
        "certificate has expired, or is not valid yet",
        {
            "catalog": (f"{REST}({VERIFY}certificate has expired (_ssl.c:1006)",),
            "registry": (f"ConnectError: {VERIFY}certificate has expired (_ssl.c:1006)",),
        },
    ),
    (
        "certificate is for another host name",
        {
            "catalog": (
                f"{REST}({VERIFY}IP address mismatch, certificate is not valid for '127.0.0.2'",
                'port 5432 failed: server certificate for "a" does not match host name "b"',
            ),
        },
    ),
    (
        "host name is unknown here",
        {
            "catalog": (
                "NameResolutionError: Failed to resolve 'c' ([Errno -2] Name or service not known)",
                f'{POSTGRES}could not translate host name "c" to address: Name or service not',
                "TTransportException: failed to resolve sockaddr for c:9083",
            ),
            "storage": (
                f"{CURL}6, Could not resolve hostname; Details: Could not resolve host: c",
            ),
            "registry": ("ConnectError: [Errno -2] Name or service not known",),
        },
    ),
    (
        "nothing listens at",
        {
            "catalog": (f'{POSTGRES}"h", port 1 failed: Connection refused',),
            "storage": (f"{CURL}7, Could not connect to server; Details: Failed to connect to h",),
            "registry": ("ConnectError: [Errno 111] Connection refused",),
        },
    ),
    (
        "no route to",
        {
            "catalog": (
                "ConnectTimeoutError: Connection to 10.0.0.1 timed out. (connect timeout=5)",
                f'{POSTGRES}"h", port 5432 failed: timeout expired',
            ),
            "storage": (f"{CURL}28, Timeout was reached",),
            "registry": ("ConnectTimeout: timed out",),
        },
    ),
    ("does not use TLS", {"catalog": ("[SSL: WRONG_VERSION_NUMBER] wrong version number",)}),
    (
        "closes the connection without an answer",
        {
            "catalog": ("RemoteDisconnected('Remote end closed connection without response')",),
            "storage": (f"{CURL}52, Server returned nothing; Details: Empty reply from server",),
            "registry": ("RemoteProtocolError: Server disconnected without sending a response.",),
        },
    ),
    ("has expired", {"catalog": (GLUE.format(name="ExpiredTokenException"),)}),
    ("have no credentials", {"catalog": ("NoCredentialsError: Unable to locate credentials",)}),
    ("region of the", {"catalog": ("NoRegionError: You must specify a region.",)}),
    ("bucket does not exist", {"storage": (f"{S3}AWS Error NO_SUCH_BUCKET during PutObject",)}),
    ("database does not exist", {"catalog": ('FATAL:  database "nodb" does not exist',)}),
    ("file of the catalog", {"catalog": ("OperationalError: unable to open database file",)}),
    ("is not a registry", {"registry": ("JSONDecodeError: Expecting value: line 1 column 1",)}),
    (
        "does not know the warehouse",
        {
            "catalog": (
                "RESTError: WarehouseNotFound: Warehouse nowhere not found",
                "RESTError: NotFoundException: no",
                "BadRequestError: BadRequestException: Unable to find warehouse nowhere",
            )
        },
    ),
    ("is not a catalog", {"catalog": ("RESTError 404: Received unexpected JSON Payload: <html>",)}),
)


@pytest.mark.parametrize(("sentence", "texts"), TEXTS, ids=[sentence for sentence, _ in TEXTS])
def test_all_clients_have_one_sentence_for_a_cause(
    sentence: str, texts: dict[Server, tuple[str, ...]]
) -> None:
    for server, each in texts.items():
        causes = [explain_text(server, text) for text in each]

        assert all(cause and sentence in cause.sentence for cause in causes), (server, causes)
        assert len(set(causes)) == 1


def test_each_sentence_names_another_cause_and_is_complete() -> None:
    sentences = {
        cause.sentence: text
        for _, texts in TEXTS
        for server, each in texts.items()
        for text in each[:1]
        if (cause := explain_text(server, text))
    }

    assert len(sentences) == sum(len(texts) for _, texts in TEXTS)
    assert not [s for s in sentences if "{" in s]


@pytest.mark.parametrize("text", ["", "database is locked", "503 Slow Down", "CommitFailed: x"])
def test_other_texts_have_no_cause(text: str) -> None:
    assert all(explain_text(server, text) is None for server in ("catalog", "storage", "registry"))


def fail_as_clients_do() -> None:
    """Hide the cause below an error that does not name it."""
    message = "could not connect"
    raise ConnectionError(message) from OSError(111, "Connection refused")


def test_a_cause_below_the_error_is_found() -> None:
    with pytest.raises(ConnectionError) as caught:
        fail_as_clients_do()

    cause = explain_error("catalog", caught.value)

    assert cause is not None
    assert cause.sentence == "nothing listens at the catalog's address"


REST_JAVA = "(org.apache.iceberg.exceptions.RESTException) Error occurred\n\tat a.B(C.java:1)\n"
S3_JAVA = "(software.amazon.awssdk.services.s3.model."
JDBC = (
    "(org.apache.iceberg.jdbc.UncheckedSQLException) Failed: x\n"
    "Caused by: org.postgresql.util.PSQLException: "
)


@pytest.mark.parametrize(
    ("server", "text", "sentence"),
    [
        (
            "catalog",
            f"{REST_JAVA}Caused by: org.apache.hc.client5.X: Connect failed: Connection refused",
            "nothing listens",
        ),
        (
            "catalog",
            "(org.apache.iceberg.exceptions.NotAuthorizedException) Not authorized: no token",
            "refuses the login",
        ),
        (
            "catalog",
            f"{JDBC}FATAL: password authentication failed for user …",
            "refuses the login",
        ),
        (
            "catalog",
            f"{JDBC}FATAL: database … does not exist",
            "database does not exist",
        ),
        (
            "catalog",
            f"{JDBC}Could not open SSL root certificate file /root/.postgresql/root.crt.",
            "not signed by an authority",
        ),
        (
            "catalog",
            "(org.apache.iceberg.exceptions.NoSuchWarehouseException) no",
            "does not know the warehouse",
        ),
        (
            "catalog",
            (
                "(org.apache.iceberg.exceptions.RESTException) Unable to process (code: 404, type: "
                "null): <html>hi</html>"
            ),
            "not a catalog",
        ),
        (
            "storage",
            f"{S3_JAVA}S3Exception) No user exists with the provided key (Service: S3)",
            "refuses the login",
        ),
        (
            "storage",
            f"{S3_JAVA}S3Exception) The AWS Access Key Id you provided does not exist in our",
            "refuses the login",
        ),
        (
            "storage",
            f"{S3_JAVA}S3Exception) The provided token is malformed or otherwise invalid.",
            "refuses the login",
        ),
        (
            "storage",
            f"{S3_JAVA}S3Exception) The provided token has expired. (Service: S3)",
            "has expired",
        ),
        ("storage", f"{S3_JAVA}S3Exception) Denied (Service: S3, Status Code: 403)", "no right"),
        (
            "storage",
            f"{S3_JAVA}S3Exception) Forbidden (Service: S3, Status Code: 403)",
            "refuses the login, the password, the key or the token, or the connection's user",
        ),
        (
            "storage",
            f"{S3_JAVA}S3Exception) Bad Request (Service: S3, Status Code: 400)",
            "the region of the storage is missing or wrong, or the temporary key has expired",
        ),
        (
            "storage",
            f"{S3_JAVA}NoSuchBucketException) The bucket",
            "bucket",
        ),
        (
            "storage",
            f"{S3_JAVA}S3Exception) The authorization header is malformed; x",
            "region",
        ),
        (
            "storage",
            "(software.amazon.X) Unable to execute\nCaused by: java.net.UnknownHostException: c",
            "host name is unknown",
        ),
    ],
)
def test_spark_has_the_same_sentences(server: Server, text: str, sentence: str) -> None:
    found = explain_java(text)

    assert found is not None
    assert found[0] == server
    assert sentence in found[1].sentence


@pytest.mark.parametrize(
    "text",
    [
        "java.net.ConnectException: Connection refused",
        "Cannot parse 'org.apache.iceberg.exceptions.NotAuthorizedException: x'",
        "(org.apache.iceberg.exceptions.CommitFailedException) Branch main has changed",
    ],
)
def test_other_texts_of_spark_have_no_cause(text: str) -> None:
    assert explain_java(text) is None
