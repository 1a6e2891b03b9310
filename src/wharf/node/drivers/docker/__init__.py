"""The Engine's HTTP API over its Unix socket, as Docker and Podman both speak it.

Responsible for what is said to the engine and what it answers: images, containers, logs, exec. It decides nothing about
allocations: the driver does, and the core of the node.
"""

from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineNotFound, EngineRejected, EngineUnreachable

__all__ = ["ContainerEngine", "EngineNotFound", "EngineRejected", "EngineUnreachable"]
