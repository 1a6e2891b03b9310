"""The `docker` driver: runs tasks as containers, through the HTTP API of Docker or Podman on a Unix socket.

Covers images, containers, their output and commands in them. Decisions about allocations are made by the agent.
"""

from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineNotFound, EngineRejected, EngineUnreachable

__all__ = ["ContainerEngine", "EngineNotFound", "EngineRejected", "EngineUnreachable"]
