"""What stands between a service and those who call it, whatever carries the requests: decide, tell, charge, remember.

The middleware and the gateway read bytes and ask here. Nothing here parses HTTP or opens a port.
"""

from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply
from wharf.limits.decisions.service import DecisionService, run_immediately

__all__ = ["AdmittedRequest", "DecisionService", "IncomingRequest", "LocalReply", "run_immediately"]
