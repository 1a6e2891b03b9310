"""The error that the admin endpoint returns to operators."""

from wharf.limits.stores.port import StoreUnavailable


class ActionError(Exception):
    """A query or action that is not possible. The text gives the reason and what to do."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def build_outage_error(problem: StoreUnavailable) -> ActionError:
    """Return the error with status 503 for an action that failed because the store is unavailable."""
    return ActionError(f"the store is unavailable: {problem}", 503)
