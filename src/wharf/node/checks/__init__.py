"""Whether services are well: they are asked at intervals, and what they answer is judged.

Responsible for asking (http, tcp, grpc, a script in the task) and for what a row of answers means. What follows from it,
a restart or the health of an allocation, is decided by the core of the node.
"""

from wharf.node.checks.asking import ask
from wharf.node.checks.finding import CheckStatus, Finding
from wharf.node.checks.standing import Standing, hear, wants_restart
from wharf.node.checks.wanted import Wanted

__all__ = ["CheckStatus", "Finding", "Standing", "Wanted", "ask", "hear", "wants_restart"]
