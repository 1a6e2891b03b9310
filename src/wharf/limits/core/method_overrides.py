"""Methods that a request names beside that of its request line. Many services serve a POST as the method that it names.

Decision record 0209. Only `find_methods` is needed for a decision; how the rules treat the methods is in `rulebook`.
"""

import re
from typing import Final
from urllib.parse import unquote_plus

OVERRIDE_HEADERS: Final = ("x-http-method-override", "x-http-method", "x-method-override")
"""The headers in which requests name another method."""
OVERRIDE_PARAMETER: Final = "_method"
"""The query parameter and form field with which forms do so."""
FORM_METHODS: Final = ("PUT", "PATCH", "DELETE")
"""The methods that a form can name. Browsers send forms with POST only."""
FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", *FORM_METHODS})
_PARAMETERS: Final = re.compile(r"[&;]")
MAX_NAME_CHARACTERS: Final = 3 * len(OVERRIDE_PARAMETER)
"""The length of the parameter's name if all of it is escaped."""
METHOD_SEPARATOR: Final = "|"


def is_form(method: str, content_type: str | None) -> bool:
    """Return whether a body may be a form: services also read a POST without a `Content-Type` as one."""
    if method != "POST":
        return False
    return content_type is None or content_type.partition(";")[0].strip().lower() in FORM_TYPES


def find_methods(method: str, headers: tuple[str, ...], query: str, *, has_form: bool) -> tuple[str, ...]:
    """Return all methods that a service may serve a request as, the most likely one first.

    `headers` are the values of `OVERRIDE_HEADERS`. With `has_form`, the body is a form that was not read, so it may name any method.
    Methods that the limits do not know count as that of the request.
    """
    named = [*headers, *(_list_parameters(query) if may_name_method(query) else ())]
    methods = dict.fromkeys(name for text in named if (name := text.strip(" \t").upper()) in _METHODS)
    methods[method] = None
    if has_form and method == "POST":
        methods |= dict.fromkeys(FORM_METHODS)
    return tuple(methods)


def may_name_method(query: str) -> bool:
    """Return whether a query may have the parameter that names a method: a quick check."""
    return OVERRIDE_PARAMETER in query or "%" in query


def _list_parameters(query: str) -> list[str]:
    """Return the values of the parameter that names a method, in any spelling."""
    values = []
    for part in _PARAMETERS.split(query):
        name, _, value = part.partition("=")
        if len(name) <= MAX_NAME_CHARACTERS and unquote_plus(name) == OVERRIDE_PARAMETER:
            values.append(unquote_plus(value))
    return values


def join_methods(methods: tuple[str, ...]) -> str:
    """Return the methods of a request as one text, by which the rulebook finds its endpoint."""
    return METHOD_SEPARATOR.join(methods)
