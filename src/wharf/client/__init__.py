"""The public client: `from wharf.client import connect`. A re-export of `wharf.contract.client`.

Names that were public under another name before 0.2 still work.
"""

from typing import TYPE_CHECKING, Any, Final

from wharf.contract import client as _client

if TYPE_CHECKING:
    from wharf.contract.client import *  # noqa: F403

_FORMER_NAMES: Final = {
    "Answer": "Response",
    "CannotConnect": "ClientSettingsError",
    "CommandEnded": "CommandResult",
    "Defaults": "ClientDefaults",
    "Exchange": "Transport",
    "ONCE": "NO_RETRIES",
    "Reply": "ClientReply",
    "Request": "ClientRequest",
    "Retries": "RetryPolicy",
    "run_command_and_wait": "run_command_blocking",
}

__all__ = [*_client.__all__, *_FORMER_NAMES]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Return a name of `wharf.contract.client`, also under the name that it had before 0.2."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_client, _FORMER_NAMES.get(name, name))
