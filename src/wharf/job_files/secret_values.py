"""Hides the values of sensitive variables, and of environment variables with the names of secrets, in replies for people."""

from typing import Any, TypeVar

import msgspec

from wharf.contract.model.jobs.plan import FieldDiff
from wharf.contract.model.jobs.sensitive_fields import hide_text
from wharf.languages.hcl.diagnostics import HiddenValues, is_secret_name

T = TypeVar("T")


def hide_values(reply: T, hidden: HiddenValues | None = None) -> T:
    """Return a reply without the values of sensitive variables, and of environment variables with the names of secrets.

    A changed field that contains one shows neither its old nor its new value: the old one is often the earlier secret.
    """

    def hide_text_part(text: str) -> str:
        return hidden.hide(text) if hidden is not None else text

    def hide(value: Any) -> Any:  # Any part of a reply.
        if isinstance(value, tuple | list):
            return type(value)([hide(item) for item in value])
        if isinstance(value, dict):
            return {hide(key): hide(item) for key, item in value.items()}
        if isinstance(value, FieldDiff) and (
            _is_secret_environment(value.name)
            or hide_text_part(value.old) != value.old
            or hide_text_part(value.new) != value.new
        ):
            return msgspec.structs.replace(value, old=hide_text(value.old), new=hide_text(value.new))
        if isinstance(value, msgspec.Struct):
            return msgspec.structs.replace(
                value, **{name: hide(getattr(value, name)) for name in value.__struct_fields__}
            )
        return hide_text_part(value) if type(value) is str else value

    result: T = hide(reply)
    return result


def _is_secret_environment(name: str) -> bool:
    """Return whether a field of a difference is an environment variable with the name of a secret, such as `Env[API_KEY]`."""
    return name.startswith("Env[") and is_secret_name(name)
