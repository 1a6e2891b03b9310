"""What a job may say to a driver: a key that the driver does not know is told, never passed over.

Whoever wrote `arg` for `args` would else see a task that does something else than was meant, and no word about it.
"""

import difflib
from collections.abc import Collection, Mapping


def describe_unknown_keys(config: Mapping[str, object], known: Collection[str], driver: str) -> list[str]:
    """A sentence for each."""
    return [_told(key, known, driver) for key in config if key not in known]


def _told(key: str, known: Collection[str], driver: str) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"{key} is no key of a {driver} task" + (f": did you mean {near[0]}?" if near else "")
