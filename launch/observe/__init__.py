"""What a run is doing, and how that is shown.

    run_view.py          the core: records of control, status and metrics in, snapshots out
    producers_view.py    its part about the producers
    rounds_view.py       its part about refit rounds
    watch.py             the shell: reads the topics on a thread
    display.py           a live table on a terminal, plain lines elsewhere
    tables.py            a snapshot as the live table
    details.py           a snapshot in detail, for `weir status`
    summary.py           what is printed when a run has ended
    formats.py           numbers, durations, curves and paths as a person reads them
    logtail.py           the part of a log that shows why its process ended

Reads only; nothing here changes a run. Only `watch.py` has a Kafka client.
"""
