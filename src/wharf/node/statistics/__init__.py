"""Measures resource usage: of the machine, and of the processes of tasks."""

from wharf.node.statistics.history import UsageHistory
from wharf.node.statistics.machine import MachineMeter
from wharf.node.statistics.tasks import MeasurableDriver, TaskMeter

__all__ = ["MachineMeter", "MeasurableDriver", "TaskMeter", "UsageHistory"]
