"""Both audits at once: the independent one and the product's own."""

from conftest import Lab
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


def assert_audited(lab: Lab, stream: str = "", table: str = "") -> None:
    """Let the independent auditor recompute the table, by default that of the lab."""
    properties, bootstrap = lab.stack.catalog_properties, lab.stack.bootstrap
    report = audit_table(properties, "lake", table or lab.table, bootstrap, stream or lab.stream)
    assert not report.findings, report.findings


def assert_exactly_once(lab: Lab, *options: str) -> None:
    """Let the independent auditor and the product's own audit both recompute everything."""
    assert_audited(lab)
    own = lab.frazil("audit", lab.stream, *options)
    assert own.code == 0, own.out + own.err


def count_open_letters(lab: Lab) -> dict[str, int]:
    """Count the open dead letters by reason."""
    answer = lab.frazil("dead-letters", lab.stream, "--json").json
    assert isinstance(answer, dict)
    return {group["reason"]: group["open"] for group in answer["groups"]}
