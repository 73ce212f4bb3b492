"""The states of a supervised run: what each waits for, how long, and what happens at its deadline.

state               waits for                       deadline             then
RUNNING             the learner's end               start timeout, until the learner has claimed the run
ENDING              the learner's end, which a `stop` on control has announced
                                                    END_S                the run has failed; the learner is asked to end
STOPPING_LEARNER    the learner's end               stop timeout         the learner is killed
UNEXPLAINED         a `stop` that explains why the learner, which will not be started again, has ended
                                                    READ_S               the run has failed
LEAVING             the producers' end              LEAVE_S              they are asked to end
STOPPING_PRODUCERS  the producers' end; with no broker, the end of all
                                                    stop timeout, BROKERLESS_S with no broker
                                                                         they are killed
KILLING             the end of all                  KILL_S               the run is over all the same; the shell sweeps
DONE                nothing
"""

from __future__ import annotations

from enum import Enum, auto

END_S = 900.0  # last checkpoint and export of a large model
ORDERLY_S = 10.0  # a producer that leaves because of a `stop` may be seen before that `stop` is
READ_S = 3.0  # reading what is on control takes at most this long, even when the broker has just come back
LEAVE_S = 15.0
BROKERLESS_S = 10.0
KILL_S = 10.0


class SupervisionState(Enum):
    RUNNING = auto()
    ENDING = auto()
    UNEXPLAINED = auto()
    STOPPING_LEARNER = auto()
    LEAVING = auto()
    STOPPING_PRODUCERS = auto()
    KILLING = auto()
    DONE = auto()
