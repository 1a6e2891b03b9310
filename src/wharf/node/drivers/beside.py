"""The former module of the types for commands beside a task. Installed driver plugins import it; new ones use `port`."""

from wharf.node.drivers.port import Command, CommandDriver, CommandOrder, Stream

RunsBeside = CommandDriver

__all__ = ["Command", "CommandDriver", "CommandOrder", "RunsBeside", "Stream"]
