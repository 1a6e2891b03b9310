"""One evaluation on a state for which nobody keeps a fleet: dry runs on imagined states, and tests."""

from wharf.model.evaluation import Evaluation
from wharf.model.moment import Moment
from wharf.scheduling.ground import Ground
from wharf.scheduling.plan import Plan
from wharf.scheduling.schedule import schedule
from wharf.state import Replica


def evaluate(snapshot: Replica, evaluation: Evaluation, moment: Moment) -> Plan:
    """The plan of one evaluation."""
    return schedule(Ground.of(snapshot), snapshot, evaluation, moment)
