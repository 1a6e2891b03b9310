"""What servers store about a job that ended and was deleted: how it ended, for jobs that wait for it."""

from wharf.contract.model.jobs.step_states import StepOutcome
from wharf.contract.model.record import Record


class JobResult(Record):
    """How a deleted job ended. It is deleted itself after a time, or when there are too many."""

    namespace: str
    job_id: str
    outcome: StepOutcome
    job_create_index: int = 0  # Distinguishes it from an earlier or later job with the same ID.
    delete_time: int = 0  # ns since the epoch: when the job was deleted.
    is_collected: bool = False  # Garbage collection deleted the job, not a user.
    create_index: int = 0
    modify_index: int = 0
