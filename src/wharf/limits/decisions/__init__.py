"""The decision service: admits or refuses requests, renders rate limit headers, charges usage and records decisions.

The middleware and the gateway read bytes and call this package. Nothing here parses HTTP or opens a port.
"""

from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply
from wharf.limits.decisions.service import DecisionService, run_immediately

__all__ = ["AdmittedRequest", "DecisionService", "IncomingRequest", "LocalReply", "run_immediately"]
