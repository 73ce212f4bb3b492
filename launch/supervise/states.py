"""The states of a supervised run, what each waits for, and how long.

state               waits for                       deadline             then
RUNNING             the learner's end               start timeout, until the claim
ENDING              the learner's end, which a `stop` on control has told: END_S
STOPPING_LEARNER    the learner's end               stop timeout         it is killed
UNEXPLAINED         a `stop` that tells why the learner, which is not started again, ended
                                                    READ_S               the run has failed
LEAVING             the producers' end              LEAVE_S              they are asked to end
STOPPING_PRODUCERS  the producers' end              stop timeout         they are killed (without a broker: all, BROKERLESS_S)
KILLING             the end of all                  KILL_S               done all the same; the shell sweeps
"""

from __future__ import annotations

from enum import Enum, auto

END_S = 900.0  # last checkpoint and export of a large model
ORDERLY_S = 10.0  # a producer that leaves because of a `stop` can be seen before that `stop` is
READ_S = 3.0  # what stands on control is read so soon, also when the broker has just come back
LEAVE_S = 15.0
BROKERLESS_S = 10.0
KILL_S = 10.0


class State(Enum):
    RUNNING = auto()
    ENDING = auto()
    UNEXPLAINED = auto()
    STOPPING_LEARNER = auto()
    LEAVING = auto()
    STOPPING_PRODUCERS = auto()
    KILLING = auto()
    DONE = auto()
