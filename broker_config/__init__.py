"""All that knows Kafka: topic names, client settings, the local broker; and what every process needs before it has a client.

Imports `schemas`, never `producer`, `learner` or `launch`, and neither torch nor vLLM. `clients` and `local` do not import each
other; the modules that choose or check a broker (the last group) may import both, and neither imports them.

    clients     Kafka clients: settings, topics, reading, writing
    local       the broker on this machine

    deadline    one budget of time, shared by all steps of a wait
    topics      names and settings of a run's topics
    processes   the identity of a process, locks between processes
    lifeline    a child that does not outlive its parent
    watchdog    stacks of a process that stands still
    logs        logging of a process
    cache       the folder of downloaded and generated files

    locate      which broker: configured, of the environment, or local
    address     the address at which peers reach this host
    preflight   is there a Kafka, and may we use it
    trial       does the broker apply the settings of a run's topics
"""
