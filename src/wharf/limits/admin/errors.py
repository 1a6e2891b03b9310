"""The error that the admin endpoint returns to operators."""

from collections.abc import Iterator
from contextlib import contextmanager

from wharf.limits.decisions.overrides import OverridesNotSaved, TooManyBans
from wharf.limits.stores.port import StoreUnavailable


class ActionError(Exception):
    """A query or action that is not possible. The text gives the reason and what to do."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def reporting_outages() -> Iterator[None]:
    """Raise `ActionError` with status 503 if the block fails because the store or the grants file is unavailable."""
    try:
        yield
    except StoreUnavailable as problem:
        raise ActionError(f"the store is unavailable: {problem}", 503) from None
    except OverridesNotSaved as problem:
        raise ActionError(f"nothing was changed: {problem}", 503) from None
    except TooManyBans as problem:
        raise ActionError(str(problem), 409) from None
