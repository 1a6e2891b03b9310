"""Which evaluations can be decided without knowing how another job's plan, that is on its way, will end."""

from wharf.model.evaluation import Evaluation
from wharf.scheduling.preemption import may_preempt
from wharf.scheduling.quota import allowance_of
from wharf.state import Replica
from wharf.state.tables import JOBS


def rests_on_room_alone(snapshot: Replica, evaluation: Evaluation) -> bool:
    """Whether other jobs concern it by nothing but the room that they leave on nodes: no quota is shared with them, nobody
    may be pushed aside, and no parent lets only some of its children run.
    """
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or job.parent_id or may_preempt(snapshot, job):
        return False
    return allowance_of(snapshot, job.namespace, job.region) is None
