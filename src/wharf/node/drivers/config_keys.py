"""Reports keys in a task's `config` that its driver does not know.

Unknown keys are errors, because a misspelled key (`arg` for `args`) would otherwise be ignored without a message.
"""

from collections.abc import Collection, Mapping

from wharf.languages.suggestions import find_nearest_name


def describe_unknown_keys(config: Mapping[str, object], known_keys: Collection[str], driver: str) -> list[str]:
    """Return one sentence for each key of `config` that is not in `known_keys`, with a similar key if one exists."""
    return [_describe_unknown_key(key, known_keys, driver) for key in config if key not in known_keys]


def _describe_unknown_key(key: str, known_keys: Collection[str], driver: str) -> str:
    """Return a sentence about the unknown key, with the most similar known key if there is one."""
    similar = find_nearest_name(key, known_keys)
    return f'unknown key "{key}" for driver {driver}' + (f'; did you mean "{similar}"?' if similar else "")
