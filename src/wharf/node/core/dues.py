"""When an allocation must be looked at again although nothing happens to it."""

from wharf.node.core.health import judged_at_s
from wharf.node.core.moment import earliest
from wharf.node.core.plan import Plan
from wharf.node.core.record import AllocationRecord


def next_due_s(record: AllocationRecord, plan: Plan) -> float | None:
    dues = [task.due_s for task in record.tasks]
    dues += [record.stop_due_s, judged_at_s(record, plan)]
    if not record.is_to_stop and not record.is_over:
        if plan.max_run_s is not None and record.began_s is not None:
            dues.append(record.began_s + plan.max_run_s)
        if plan.stop_after_lost_s is not None and record.lost_contact_s is not None:
            dues.append(record.lost_contact_s + plan.stop_after_lost_s)
    return earliest(dues)
