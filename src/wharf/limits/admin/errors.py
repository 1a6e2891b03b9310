"""The error that the admin endpoint returns to operators."""

from wharf.limits.decisions.overrides import GrantsNotSaved
from wharf.limits.stores.port import StoreUnavailable


class ActionError(Exception):
    """A query or action that is not possible. The text gives the reason and what to do."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def build_outage_error(problem: StoreUnavailable | GrantsNotSaved) -> ActionError:
    """Return the error with status 503 for an action that failed because its result cannot be stored."""
    if isinstance(problem, GrantsNotSaved):
        return ActionError(f"nothing was changed: {problem}", 503)
    return ActionError(f"the store is unavailable: {problem}", 503)
