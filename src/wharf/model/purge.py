"""Purges under way: a job is gone, and what it left is being taken away step by step.

The intent is recorded with the job's own removal, so that whoever leads next goes on where the last one stopped.
"""

from wharf.model.record import Record


class JobPurge(Record):
    """What is left of one life of a job. Its record ends with the last thing that it names."""

    namespace: str
    job_id: str
    job_create_index: int = 0
    """Tells this life of the job from the next one, which may begin before this purge ends."""
    eval_id: str = ""
    """The evaluation that stops the job's work: it is not closed with the others."""
    create_index: int = 0
    modify_index: int = 0
