"""The public client: `from wharf.client import connect`. A re-export of `wharf.contract.client`.

Names that were public under another name before 0.2 still work.
"""

from typing import TYPE_CHECKING, Any, Final

from wharf.contract import client as _client

if TYPE_CHECKING:
    from wharf.contract.client import *  # noqa: F403
    from wharf.contract.client.flow import RetryPolicy

_FORMER_NAMES: Final = {
    "Answer": "Response",
    "CannotConnect": "ClientSettingsError",
    "CommandEnded": "CommandResult",
    "Defaults": "ClientDefaults",
    "Exchange": "Transport",
    "ONCE": "NO_RETRIES",
    "Reply": "ClientReply",
    "Request": "ClientRequest",
    "run_command_and_wait": "run_command_blocking",
}

__all__ = [*_client.__all__, *_FORMER_NAMES, "Retries"]


def Retries(  # noqa: N802 - the former name of a class
    attempts: int = 4, first_pause_s: float = 0.1, longest_pause_s: float = 5.0
) -> "RetryPolicy":
    """Return a retry policy. The former name of `RetryPolicy`, with the former names of its fields."""
    policy: RetryPolicy = _client.RetryPolicy(attempts, first_pause_s, longest_pause_s)
    return policy


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Return a name of `wharf.contract.client`, also under the name that it had before 0.2."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_client, _FORMER_NAMES.get(name, name))
