"""What stands between a service and those who call it, whatever carries the requests: decide, tell, charge, remember.

The middleware and the gateway read bytes and ask here. Nothing here parses HTTP or opens a port.
"""

from wharf.limits.desk.arrival import Arrival, Reply
from wharf.limits.desk.desk import Desk, drive
from wharf.limits.desk.passage import Passage

__all__ = ["Arrival", "Desk", "Passage", "Reply", "drive"]
