"""Kafka as a log of offsets: clusters, consumers and the schema registry. No policy.

Face: `KafkaLog`, `TopicFacts`, `OffsetConsumer`, `SchemaRegistry`, `Registered`.
May import: `connections`, `ledger`, `errors`.
"""
