"""The errors that calls of the public client raise. A re-export of `wharf.contract.client.errors`.

Names that were public under another name before 0.2 still work.
"""

from typing import TYPE_CHECKING, Any, Final

from wharf.contract.client import errors as _errors

if TYPE_CHECKING:
    from wharf.contract.client.errors import *  # noqa: F403

_FORMER_NAMES: Final = {
    "Invalid": "InvalidRequest",
    "LeftOut": "NotSupported",
    "Limited": "RateLimited",
    "NotUnderstood": "UnexpectedReply",
    "PASSING": "TRANSIENT_ERRORS",
    "Refused": "RequestRefused",
    "TYPE_OF": "ERROR_TYPE_BY_CODE",
    "TooLarge": "RequestTooLarge",
    "Unavailable": "ServerUnavailable",
    "Undecided": "OutcomeUnknown",
    "Unproven": "AuthenticationFailed",
    "Unsupported": "UnsupportedFormat",
    "refused": "build_error",
}

__all__ = [name for name in dir(_errors) if not name.startswith("_")] + [*_FORMER_NAMES]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Return a name of `wharf.contract.client.errors`, also under the name that it had before 0.2."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_errors, _FORMER_NAMES.get(name, name))
