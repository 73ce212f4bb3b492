"""Kafka clients: how they are set up, and what they are asked.

Nothing here imports `broker_config.local`, or the modules that choose or check a broker (`locate`, `address`, `preflight`,
`trial`): a client is given its broker. Nothing here decodes a record's value.

    security    authentication, from `kafka.security`
    settings    every setting of every client, and the clients
    errors      Kafka's errors in words; which of them pass
    patience    a question that is asked again while the broker is away
    admin       making, describing, measuring and deleting topics
    consuming   assigning partitions of topics that exist
    reader      reading logs as they grow, on a thread
    stored      reading whole topics, every record with its bytes
    writer      writing logs, every delivery report evaluated
"""
