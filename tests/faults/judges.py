"""Both audits at once: the independent one and the product's own."""

from support.broker_lake import BrokerLake

from faults.auditor import audit_table
from frazil.observability.audit import audit_stream


def audit_both(lake: BrokerLake) -> None:
    """Let both audits judge the table."""
    preset, bootstrap = lake.store.preset, lake.work.kafka_config["bootstrap.servers"]
    name = lake.stream.table.name
    report = audit_table(preset.properties, preset.name, name, bootstrap, lake.stream.stream)
    assert not report.findings, report.findings
    assert audit_stream(lake.work).findings == ()
