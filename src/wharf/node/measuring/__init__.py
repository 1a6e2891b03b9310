"""What a node measures: of its machine, and of the processes of its tasks."""

from wharf.node.measuring.history import History
from wharf.node.measuring.machine import MachineMeter
from wharf.node.measuring.tasks import Measurable, TaskMeter

__all__ = ["History", "MachineMeter", "Measurable", "TaskMeter"]
