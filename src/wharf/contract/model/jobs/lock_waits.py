"""What an evaluation stores about the steps that wait for the slot of a lock. Who gets a slot is decided elsewhere."""

from wharf.contract.model.jobs.steps import LockPolicy
from wharf.contract.model.record import Record


class LockWait(Record):
    """A step whose elements could not be placed, and the lock that they need."""

    key: str  # The name of the lock.
    step: str
    slots: int = 1  # How many allocations may hold the lock, according to the step.
    policy: str = LockPolicy.QUEUE.value
    since: int = 0  # ns since the epoch: when the step became ready. Slots are given in this order.
    count: int = 1  # How many elements wait.
    lacks_capacity: bool = False  # A slot was free, but no node had capacity. Others need not wait for it.
