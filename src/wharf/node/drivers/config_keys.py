"""Reports keys in a task's `config` that its driver does not know.

Unknown keys are errors, because a misspelled key (`arg` for `args`) would otherwise be ignored without a message. Options of
Nomad that change nothing here are ignored: servers have warned of them.
"""

from collections.abc import Collection, Mapping

from wharf.contract.model.drivers.options import NOMAD_OPTIONS
from wharf.languages.suggestions import find_nearest_name


def describe_unknown_keys(config: Mapping[str, object], known_keys: Collection[str], driver: str) -> list[str]:
    """Return one sentence for each key of `config` that is not in `known_keys`, with a similar key if one exists."""
    foreign = NOMAD_OPTIONS.get(driver, {})
    ignored = {key for key, option in foreign.items() if option.is_ignored}
    return [
        _describe_unknown_key(key, known_keys, driver) for key in config if key not in known_keys and key not in ignored
    ]


def _describe_unknown_key(key: str, known_keys: Collection[str], driver: str) -> str:
    """Return a sentence about the unknown key, with the most similar known key if there is one."""
    similar = find_nearest_name(key, known_keys)
    return f'unknown key "{key}" for driver {driver}' + (f'; did you mean "{similar}"?' if similar else "")
