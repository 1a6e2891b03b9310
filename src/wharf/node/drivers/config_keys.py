"""Reports keys in a task's `config` that its driver does not know.

Unknown keys are errors, because a misspelled key (`arg` for `args`) would otherwise be ignored without a message.
"""

from collections.abc import Collection, Mapping

from wharf.languages.suggestions import find_nearest_name


def describe_unknown_keys(config: Mapping[str, object], known: Collection[str], driver: str) -> list[str]:
    """Return one sentence for each key of `config` that is not in `known`, with a suggestion for likely typing
    errors."""
    return [_describe_unknown_key(key, known, driver) for key in config if key not in known]


def _describe_unknown_key(key: str, known: Collection[str], driver: str) -> str:
    nearest = find_nearest_name(key, known)
    return f"{key} is no key of a {driver} task" + (f": did you mean {nearest}?" if nearest else "")
