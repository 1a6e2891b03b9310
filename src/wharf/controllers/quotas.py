"""Which evaluations wait for room in a quota, and whether there is some now. Read from the state; it holds nothing."""

from wharf.model.evaluation import Evaluation, EvaluationStatus
from wharf.scheduling.quota import Allowance, allowance_of, amounts_asked
from wharf.state import Replica
from wharf.state.tables import EVALUATIONS_BY_STATUS, JOBS


def waiting(snapshot: Replica) -> list[Evaluation]:
    """Those that a quota keeps waiting, the most urgent first, then the oldest."""
    blocked = snapshot.those(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
    found = [each for each in blocked if each.quota_limit_reached]
    return sorted(found, key=lambda each: (-each.priority, each.create_index, each.id))


def to_try(snapshot: Replica, most: int) -> list[Evaluation]:
    """Those of them for which there is room now. What one of them would take is not there for the next."""
    allowances: dict[tuple[str, str], Allowance | None] = {}
    found = []
    for evaluation in waiting(snapshot):
        job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        if job is None:
            found.append(evaluation)  # It has nothing to wait for.
            continue
        key = (evaluation.quota_limit_reached, job.region)
        if key not in allowances:
            allowances[key] = allowance_of(snapshot, job.namespace, job.region)
        allowance = allowances[key]
        groups = [group for name in evaluation.failed_tg_allocs or {} if (group := job.group(name)) is not None]
        is_other = allowance is not None and allowance.quota != evaluation.quota_limit_reached
        if allowance is None or is_other or not groups:
            found.append(evaluation)
            continue
        for group in groups:
            asked = amounts_asked(group)
            if not allowance.exceeded(asked):
                allowance.take(asked)
                found.append(evaluation)
                break
    return found[:most]
