"""What a node measures: of its machine, and of the processes of its tasks."""

from wharf.node.statistics.history import UsageHistory
from wharf.node.statistics.machine import MachineMeter
from wharf.node.statistics.tasks import MeasurableDriver, TaskMeter

__all__ = ["MachineMeter", "MeasurableDriver", "TaskMeter", "UsageHistory"]
