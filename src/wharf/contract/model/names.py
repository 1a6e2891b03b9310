"""Limits on names and descriptions of objects. The error text for an invalid name belongs to the module of each object."""

import re
from typing import Final

NAME_REGEX: Final = "^[a-zA-Z0-9-]{1,128}$"
"""The pattern for names of namespaces, policies, roles, login methods and quotas, as error messages show it."""
NAME_RULE_TEXT: Final = "use 1 to 128 letters, digits and dashes"
"""The same rule in words."""
NODE_POOL_NAME_REGEX: Final = "^[a-zA-Z0-9-_]{1,128}$"
"""The pattern for names of node pools, as error messages show it."""
MAX_DESCRIPTION_CHARS: Final = 256
MAX_DISPLAY_NAME_CHARS: Final = 256
"""Length of names that are only displayed, such as a token's."""

_NAME: Final = re.compile("[a-zA-Z0-9-]{1,128}")
_POOL_NAME: Final = re.compile("[a-zA-Z0-9_-]{1,128}")


def is_valid_name(text: str) -> bool:
    """Return whether a namespace, policy, role, auth method or quota may have this name."""
    return _NAME.fullmatch(text) is not None


def is_valid_node_pool_name(text: str) -> bool:
    """Return whether a node pool may have this name. Unlike other names, it may contain underscores."""
    return _POOL_NAME.fullmatch(text) is not None


def list_description_problems(description: str) -> list[str]:
    """Return an error text if the description of an object is too long; otherwise an empty list."""
    if len(description) > MAX_DESCRIPTION_CHARS:
        return [f"description longer than {MAX_DESCRIPTION_CHARS}"]
    return []
