"""A trial topic: does the broker apply the settings that the run's topics need? Checked before anything starts.

A broker may clamp or refuse settings (a topic policy, a managed service, too few brokers), which otherwise shows only at the
first large record. The trial topic has the run's prefix, so the same rights apply to it, and its name is used for nothing else.
"""

from __future__ import annotations

from broker_config.clients import admin
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline
from broker_config.topics import Topics, TopicSpec, topic_config
from schemas.config.kafka import KafkaConfig
from schemas.errors import BrokerError, ConfigError, Problem


def check_topics(kafka: KafkaConfig, bootstrap: str, run_id: str, deadline: Deadline) -> None:
    """Make a topic with the settings of a new run's version topics, read back what was applied, delete the topic.

    Raises:
        ConfigError: the run id is taken; the broker refuses, or applied other settings, such as a smaller message size.
        DeadlineExceeded: no answer in time.
    """
    client = make_admin(kafka, bootstrap, f"{run_id}.trial")
    taken = admin.topics_of_run(client, run_id, deadline)
    if taken:
        fix = "choose another run.id, or continue the run with --resume"
        raise ConfigError([Problem("run.id", run_id, f"a run of this id has topics at {bootstrap} ({taken[0]}, ...)", fix)])
    name = f"{Topics(run_id).prefix}trial"
    spec = TopicSpec(name, kafka.partitions, kafka.replication_factor, topic_config(kafka))
    try:
        admin.create_topics(client, [spec], deadline, adopt_existing=True)
    except BrokerError as error:
        fix = "fix the broker's settings, or the kafka section of the config"
        raise ConfigError([Problem("kafka", bootstrap, f"the run's topics cannot be made there: {error}", fix)]) from error
    finally:
        admin.delete_topics(client, [name], deadline)
