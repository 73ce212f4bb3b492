"""Supervision of a run on this machine.

    supervision.py            the core: when the run is over and why, and in which order its processes end
    process_supervision.py    the core's part about a process that has died
    broker_supervision.py     the core's part about the broker
    states.py, events.py      the states of a supervised run; its events and commands
    restarts.py, outage.py    deaths of one process; outages of the broker
    outcome.py                how a run ended
    topic_events.py           what the topics show, as events
    supervisor.py             the shell: starts, watches and ends the processes
    signal_inbox.py           signals, as events
    broker_monitor.py         the shell for the broker: asks it, and starts it again

Only `supervisor.py` and `broker_monitor.py` touch processes, clients or the clock, and `signal_inbox.py` signals; the others are
pure.
"""
