"""Selects blocked evaluations that wait for a quota and that the quota now allows.

It reads only the replica and keeps no state.
"""

from wharf.cluster.scheduling.capacity.quotas import RemainingQuota, get_remaining_quota, sum_requested_amounts
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS_BY_QUOTA, JOBS
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus


def list_waiting_evaluations(snapshot: Replica) -> list[Evaluation]:
    """Return the blocked evaluations that wait for a quota, by descending priority, then age."""
    retries = [
        evaluation
        for quota in snapshot.iter_index_values(EVALUATIONS_BY_QUOTA)
        for evaluation in snapshot.list_by_index(EVALUATIONS_BY_QUOTA, quota)
        if evaluation.status is EvaluationStatus.BLOCKED
    ]
    return sorted(retries, key=lambda evaluation: (-evaluation.priority, evaluation.create_index, evaluation.id))


def select_retries(snapshot: Replica, max_evaluations: int) -> list[Evaluation]:
    """Return up to `max_evaluations` evaluations that wait for a quota and whose quota now allows one more allocation.

    What each returned evaluation requests is subtracted before the next one is checked. Evaluations whose job or quota
    has changed since are returned too.
    """
    remaining_quotas: dict[tuple[str, str], RemainingQuota | None] = {}
    retries = []
    for evaluation in list_waiting_evaluations(snapshot):
        job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        if job is None:
            retries.append(evaluation)  # The job was deleted: let the evaluation end.
            continue
        key = (evaluation.quota_limit_reached, job.region)
        if key not in remaining_quotas:
            remaining_quotas[key] = get_remaining_quota(snapshot, job.namespace, job.region)
        remaining_quota = remaining_quotas[key]
        groups = [group for name in evaluation.failed_tg_allocs or {} if (group := job.find_group(name)) is not None]
        has_other_quota = remaining_quota is not None and remaining_quota.quota != evaluation.quota_limit_reached
        if remaining_quota is None or has_other_quota or not groups:
            retries.append(evaluation)
            continue
        for group in groups:
            requested = sum_requested_amounts(group)
            if not remaining_quota.list_exceeded_limits(requested):
                remaining_quota.consume_amounts(requested)
                retries.append(evaluation)
                break
    return retries[:max_evaluations]
