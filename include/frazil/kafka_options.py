"""librdkafka's settings as the Java client's, so that one connection serves both."""

from collections.abc import Mapping

_JAVA_ONLY_PREFIX = "java."
_SAME = frozenset(
    {"bootstrap.servers", "security.protocol", "client.id", "client.rack", "request.timeout.ms"}
)
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def to_librdkafka(config: Mapping[str, str]) -> dict[str, str]:
    """Leave out what only the Java client knows: librdkafka refuses settings that it does not."""
    return {k: value for k, value in config.items() if not k.startswith(_JAVA_ONLY_PREFIX)}


def to_spark_options(config: Mapping[str, str]) -> dict[str, str]:
    """Translate what both clients know; settings named `java.*` are passed on as they are."""
    options = {f"kafka.{key}": value for key, value in config.items() if key in _SAME}
    for key, value in config.items():
        if key.startswith(_JAVA_ONLY_PREFIX):
            options[f"kafka.{key.removeprefix(_JAVA_ONLY_PREFIX)}"] = value
    mechanism = config.get("sasl.mechanism") or config.get("sasl.mechanisms")
    if mechanism:
        options["kafka.sasl.mechanism"] = mechanism
    if mechanism in _LOGIN_MODULES and "kafka.sasl.jaas.config" not in options:
        options["kafka.sasl.jaas.config"] = _jaas(_LOGIN_MODULES[mechanism], config)
    if "ssl.ca.location" in config and "kafka.ssl.truststore.location" not in options:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = config["ssl.ca.location"]
    return options


def _jaas(module: str, config: Mapping[str, str]) -> str:
    """Write JAAS; quotes inside a password would end it early."""
    user, password = (
        config.get(f"sasl.{part}", "").replace("\\", "\\\\").replace('"', '\\"')
        for part in ("username", "password")
    )
    return f'{module} required username="{user}" password="{password}";'
