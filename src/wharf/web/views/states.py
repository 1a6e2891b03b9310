"""States in words: what a person reads about a job, an allocation or a node, with a tone that the style turns into a color."""

import enum
from typing import Final

import msgspec

from wharf.contract.model.allocations.allocation import AllocationStub, ClientStatus, DesiredStatus
from wharf.contract.model.nodes.node import DrainStatus
from wharf.contract.wire.allocations.messages import AllocationView
from wharf.contract.wire.jobs.messages import JobStub
from wharf.contract.wire.jobs.states import JobState, describe_job_state
from wharf.contract.wire.nodes.messages import NodeListStub


class Tone(enum.StrEnum):
    """How a state is to be taken. Templates show it as a color, and the symbol as well, for people who see no colors."""

    GOOD = "good"
    BUSY = "busy"
    WAIT = "wait"
    BAD = "bad"
    IDLE = "idle"


SYMBOL_BY_TONE: Final = {Tone.GOOD: "●", Tone.BUSY: "◐", Tone.WAIT: "▲", Tone.BAD: "✕", Tone.IDLE: "○"}


class State(msgspec.Struct, frozen=True):
    """A state in words."""

    text: str
    tone: Tone

    @property
    def symbol(self) -> str:
        return SYMBOL_BY_TONE[self.tone]


ALLOCATION_STATES: Final = {
    ClientStatus.PENDING: State("starting", Tone.BUSY),
    ClientStatus.RUNNING: State("running", Tone.GOOD),
    ClientStatus.COMPLETE: State("complete", Tone.IDLE),
    ClientStatus.FAILED: State("failed", Tone.BAD),
    ClientStatus.LOST: State("lost", Tone.BAD),
    ClientStatus.UNKNOWN: State("out of contact", Tone.WAIT),
}


INELIGIBLE: Final = "ineligible"
"""The state of a node on which an operator lets nothing new be placed."""
ListedAllocation = AllocationStub | AllocationView


def describe_allocation(allocation: ListedAllocation) -> State:
    """Return the state of an allocation. One that should stop and still runs is stopping."""
    if allocation.desired_status is not DesiredStatus.RUN and not allocation.client_status.is_terminal:
        return State("stopping", Tone.BUSY)
    return ALLOCATION_STATES[allocation.client_status]


def describe_node(node: NodeListStub) -> State:
    """Return the state of a node: whether it is there, and whether it takes work."""
    if node.status != "ready":
        return State(str(node.status), Tone.BAD if node.status == "down" else Tone.WAIT)
    if node.drain:
        return State("draining", Tone.BUSY)
    if node.scheduling_eligibility != "eligible":
        is_drained = node.last_drain is not None and node.last_drain.status is DrainStatus.COMPLETE
        return State("drained" if is_drained else INELIGIBLE, Tone.WAIT)
    return State("ready", Tone.GOOD)


JOB_TONES: Final = {
    JobState.PENDING: Tone.WAIT,
    JobState.WAITING: Tone.WAIT,
    JobState.STARTING: Tone.BUSY,
    JobState.RUNNING: Tone.GOOD,
    JobState.SCHEDULED: Tone.GOOD,
    JobState.READY: Tone.GOOD,
    JobState.COMPLETE: Tone.IDLE,
    JobState.WITH_FAILURES: Tone.WAIT,
    JobState.FAILED: Tone.BAD,
    JobState.CANCELED: Tone.IDLE,
    JobState.SKIPPED: Tone.IDLE,
    JobState.STOPPING: Tone.BUSY,
    JobState.STOPPED: Tone.IDLE,
    JobState.DEAD: Tone.IDLE,
}


def describe_job(job: JobStub) -> State:
    """Return the state of a job, in the words of the command line."""
    state = describe_job_state(job)
    return State(state, JOB_TONES[state])
