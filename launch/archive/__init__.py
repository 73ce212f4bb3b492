"""Steps of a run trained again, and part of a run as a folder.

    replay.py    `weir replay`: the processes that train steps again
    dump.py      `weir dump`: part of a run as a folder that needs no broker
    load.py      `weir load`: a run made from such a folder
    refill.py    writing records as they were to an empty topic

The training itself, and the form of a dump, are in `learner/replay/`. Imports no torch.
"""
