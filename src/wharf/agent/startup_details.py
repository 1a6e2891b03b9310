"""Names of details that child processes report when they are ready, for the lines that commands print."""

from typing import Final

REGISTRATION_DETAIL: Final = "registration"
"""Present if the node of an agent is not registered yet."""
UNAVAILABLE_DRIVERS_DETAIL: Final = "unavailable_drivers"
"""The drivers that cannot run tasks on the node, each with its reason. Absent if all can."""
