"""The broker on this machine: Kafka is downloaded, started, stopped and asked for its state here.

Nothing here imports `broker_config.clients` or knows a run's topics: it is a Kafka broker like any other. Only `cli` prints.

    artifacts           the pinned jars, downloaded (`kafka_artifacts.txt`)
    java                the Java runtime
    installation        a Kafka that can be run: Java and jars
    cds                 the class archive, for quick starts
    tools               Kafka's command-line tools as scripts

    broker              one broker: start, stop, state
    folder              what it keeps on disk
    startup             its ports, its data folder, its process
    probe               which process it is, and whether it serves
    broker_log          why it ended, according to its log
    ports               free ports
    server_properties   its settings

    cli                 `python -m broker_config`
"""
