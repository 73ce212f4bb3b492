"""The processes of a run: what they are, and how they are started and ended.

    specs.py          name, command, environment and log file of each process; pure
    children.py       a process as the supervisor holds it
    guard.py          stands above each process, so that nothing of it outlives the run
    torchrun.py       torchrun, with the exit code of the rank that failed first
    model_build.py    making a missing model
    broker.py         the broker, for as long as somebody needs it
    keeper.py         stops the local broker when the supervisor was killed

`guard.py` and `keeper.py` run for as long as a run does: they import neither pydantic nor confluent_kafka until they need them.
Only `torchrun.py` imports torch. Nothing here imports `launch.supervise`.
"""
