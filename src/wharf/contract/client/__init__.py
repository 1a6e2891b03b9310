"""A typed client of the HTTP API: `connect` returns a synchronous client, `connect_async` an asyncio client.

Modules are imported on first use, because the command line imports this package even to print help.
"""

from typing import TYPE_CHECKING, Any, Final

from wharf.contract.client.transport import ClientReply, ClientRequest, Transport, Unreachable

if TYPE_CHECKING:
    from wharf.contract.client.async_client import AsyncClient
    from wharf.contract.client.batch.functions import RemoteError, RemoteFuture, RemoteMap, RemoteTraceback, map
    from wharf.contract.client.batch.submission import BatchJob, JobFailed, submit
    from wharf.contract.client.calls import Response
    from wharf.contract.client.connection import ClientSettingsError, connect, connect_async
    from wharf.contract.client.exec import (
        CommandResult,
        RunningCommand,
        open_action,
        open_command,
        run_command,
        run_command_blocking,
    )
    from wharf.contract.client.flow import NO_RETRIES, ClientDefaults, RetryPolicy
    from wharf.contract.client.settings import ClientSettings, read_settings
    from wharf.contract.client.sync_client import SyncClient

_MODULE_BY_NAME: Final = {
    "AsyncClient": "async_client",
    "BatchJob": "batch.submission",
    "ClientDefaults": "flow",
    "ClientSettings": "settings",
    "ClientSettingsError": "connection",
    "CommandResult": "exec",
    "JobFailed": "batch.submission",
    "NO_RETRIES": "flow",
    "RemoteError": "batch.functions",
    "RemoteFuture": "batch.functions",
    "RemoteMap": "batch.functions",
    "RemoteTraceback": "batch.functions",
    "Response": "calls",
    "RetryPolicy": "flow",
    "RunningCommand": "exec",
    "SyncClient": "sync_client",
    "connect": "connection",
    "connect_async": "connection",
    "map": "batch.functions",
    "open_action": "exec",
    "open_command": "exec",
    "read_settings": "settings",
    "run_command": "exec",
    "run_command_blocking": "exec",
    "submit": "batch.submission",
}


def __getattr__(name: str) -> Any:  # The types are in the TYPE_CHECKING imports above.
    """Import the module that defines `name`, and return the object."""
    module = _MODULE_BY_NAME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)


__all__ = [
    "NO_RETRIES",
    "AsyncClient",
    "BatchJob",
    "ClientDefaults",
    "ClientReply",
    "ClientRequest",
    "ClientSettings",
    "ClientSettingsError",
    "CommandResult",
    "JobFailed",
    "RemoteError",
    "RemoteFuture",
    "RemoteMap",
    "RemoteTraceback",
    "Response",
    "RetryPolicy",
    "RunningCommand",
    "SyncClient",
    "Transport",
    "Unreachable",
    "connect",
    "connect_async",
    "map",
    "open_action",
    "open_command",
    "read_settings",
    "run_command",
    "run_command_blocking",
    "submit",
]  # fmt: skip
