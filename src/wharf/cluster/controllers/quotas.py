"""Which evaluations wait for room in a quota, and whether there is some now. Read from the state; it holds nothing."""

from wharf.cluster.scheduling.capacity.quotas import RemainingQuota, get_remaining_quota, sum_requested_amounts
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS_BY_STATUS, JOBS
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus


def list_waiting_evaluations(snapshot: Replica) -> list[Evaluation]:
    """Those that a quota keeps waiting, the most urgent first, then the oldest."""
    blocked = snapshot.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
    found = [each for each in blocked if each.quota_limit_reached]
    return sorted(found, key=lambda each: (-each.priority, each.create_index, each.id))


def select_retries(snapshot: Replica, max_evaluations: int) -> list[Evaluation]:
    """Those of them for which there is room now. What one of them would take is not there for the next."""
    allowances: dict[tuple[str, str], RemainingQuota | None] = {}
    found = []
    for evaluation in list_waiting_evaluations(snapshot):
        job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        if job is None:
            found.append(evaluation)  # It has nothing to wait for.
            continue
        key = (evaluation.quota_limit_reached, job.region)
        if key not in allowances:
            allowances[key] = get_remaining_quota(snapshot, job.namespace, job.region)
        allowance = allowances[key]
        groups = [group for name in evaluation.failed_tg_allocs or {} if (group := job.find_group(name)) is not None]
        is_other = allowance is not None and allowance.quota != evaluation.quota_limit_reached
        if allowance is None or is_other or not groups:
            found.append(evaluation)
            continue
        for group in groups:
            asked = sum_requested_amounts(group)
            if not allowance.list_exceeded_limits(asked):
                allowance.consume_amounts(asked)
                found.append(evaluation)
                break
    return found[:max_evaluations]
