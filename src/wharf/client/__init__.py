"""A typed client of the HTTP API: `connect` for one that waits, `connect_async` for one that is awaited.

What is heavy is loaded when it is used: the command line imports this for a page of help.
"""

from typing import TYPE_CHECKING, Any, Final

from wharf.client.exchange import Exchange, Reply, Request, Unreachable

if TYPE_CHECKING:
    from wharf.client.async_client import AsyncClient
    from wharf.client.calls import Answer
    from wharf.client.commands import (
        CommandEnded,
        RunningCommand,
        open_action,
        open_command,
        run_command,
        run_command_and_wait,
    )
    from wharf.client.connecting import CannotConnect, connect, connect_async
    from wharf.client.flow import ONCE, Defaults, Retries
    from wharf.client.settings import ClientSettings, read_settings
    from wharf.client.sync_client import SyncClient

_WHERE: Final = {
    "Answer": "calls",
    "AsyncClient": "async_client",
    "CannotConnect": "connecting",
    "ClientSettings": "settings",
    "CommandEnded": "commands",
    "Defaults": "flow",
    "ONCE": "flow",
    "Retries": "flow",
    "RunningCommand": "commands",
    "SyncClient": "sync_client",
    "connect": "connecting",
    "connect_async": "connecting",
    "open_action": "commands",
    "open_command": "commands",
    "read_settings": "settings",
    "run_command": "commands",
    "run_command_and_wait": "commands",
}


def __getattr__(name: str) -> Any:  # Of the kinds that are told above.
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)


__all__ = [
    "ONCE", "Answer", "AsyncClient", "CannotConnect", "ClientSettings", "CommandEnded", "Defaults", "Exchange", "Reply",
    "Request", "Retries", "RunningCommand", "SyncClient", "Unreachable", "connect", "connect_async", "open_action", "open_command",
    "read_settings", "run_command", "run_command_and_wait",
]  # fmt: skip
