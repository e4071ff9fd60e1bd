"""Send each line of standard input as a record to a topic; create the topic if it is missing.

echo '{"id": 1}' | python -m frazil_demo.send orders
"""

import sys

from confluent_kafka import Producer

from frazil.connections.clients import find_kafka_config
from frazil.errors import FrazilError
from frazil.messages import count_noun
from frazil_demo.topic import ensure_topic, finish


def main() -> None:
    """Send the records and print how many were sent.

    Raises:
        SystemExit: wrong usage, or Kafka failed.
    """
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and its argument
        sys.exit("usage: python -m frazil_demo.send TOPIC < lines")
    topic = sys.argv[1]
    try:
        config = find_kafka_config("kafka_default")
        ensure_topic(config, topic, {})
        # A new broker's coordinator loads for a moment; librdkafka warns, and asks again.
        producer = Producer({**config, "enable.idempotence": True, "log_level": 3})
        sent = 0
        for line in sys.stdin.buffer:
            # The first one goes to partition 0, where `frazil where` of the README looks for it.
            producer.produce(topic, value=line.rstrip(b"\r\n"), partition=0 if not sent else -1)
            producer.poll(0)
            sent += 1
        finish(producer, topic)
    except FrazilError as error:
        sys.exit(f"{error.code}: {error}")
    sys.stdout.write(f"{topic}: {count_noun(sent, 'record')} sent\n")


if __name__ == "__main__":
    main()
