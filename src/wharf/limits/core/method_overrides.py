"""Methods that a request names beside that of its request line. Many services serve a POST as the method that it names.

Decision record 0209. Only `find_methods` is needed for a decision; how the rules treat the methods is in `rulebook`.
"""

import functools
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_plus

OVERRIDE_HEADERS: Final = ("x-http-method-override", "x-http-method", "x-method-override")
"""The headers in which requests name another method."""
FORM_METHODS: Final = ("PUT", "PATCH", "DELETE")
"""The methods that a form can name. Browsers send forms with POST only."""
FORM_TYPE: Final = "application/x-www-form-urlencoded"
MULTIPART_PREFIX: Final = "multipart/"
"""Begins the types of forms with files. Some services, such as those with Rack, read each of these types as a form."""
_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", *FORM_METHODS})
_PARAMETER: Final = re.compile(
    r"(?:^|[&;])(?:\+| |%20)*+(?:[_.]|%5[Ff]|%2[Ee])"
    r"(?:m|%6[Dd])(?:e|%65)(?:t|%74)(?:h|%68)(?:o|%6[Ff])(?:d|%64)(?:%00[^=&;]*+)?=([^&;]*+)"
)
"""The query parameter `_method` with its value, which names a method in forms, also as PHP reads names: without spaces before it, up to a zero byte, and with `_` for a dot.
Decoding the whole query instead takes 20 ms for 8 KB."""
MAX_CACHED_REQUESTS: Final = 2
"""The methods of the last requests are stored, because several steps of a decision need them."""
_TYPE_END: Final = re.compile(r"[;,\s]")
"""Services end a content type at one of these signs: PHP at each of them, Rack at a comma too."""
METHOD_SEPARATOR: Final = ","
"""A sign that no method can contain, so that a caller cannot send several methods as one."""


def is_form(method: str, content_types: Iterable[str]) -> bool:
    """Return whether a body may be a form, by the values of the `Content-Type` headers.

    Services differ in which of several headers they use, and read a POST without a type, or with an empty one, as a form.
    """
    if method != "POST":
        return False
    names = [_TYPE_END.split(text.strip(), 1)[0].lower() for text in content_types]
    return not names or any(not name or name == FORM_TYPE or name.startswith(MULTIPART_PREFIX) for name in names)


def is_json(method: str, content_types: Iterable[str]) -> bool:
    """Return whether a body may be JSON that names a method, by the values of the `Content-Type` headers."""
    if method != "POST":
        return False
    return any(_TYPE_END.split(text.strip(), 1)[0].lower().endswith("json") for text in content_types)


@functools.lru_cache(MAX_CACHED_REQUESTS)
def find_methods(method: str, headers: tuple[str, ...], query: str, *, has_form: bool) -> tuple[str, ...]:
    """Return all methods that a service may serve a request as, the most likely one first.

    `headers` are the values of `OVERRIDE_HEADERS`. Of several methods in one value, some services serve the first. With `has_form`,
    the body is a form, or JSON, that was not read, so it may name any method. Methods that the limits do not know count as that of the request.
    """
    named = [
        *(part for text in headers for part in text.split(",")),
        *(_list_parameters(query) if may_name_method(query) else ()),
    ]
    methods = dict.fromkeys(name for text in named if (name := text.strip(" \t").upper()) in _METHODS)
    methods[method] = None
    if has_form and method == "POST":
        methods |= dict.fromkeys(FORM_METHODS)
    return tuple(methods)


def may_name_method(query: str) -> bool:
    """Return whether a query may have the parameter that names a method: a quick check."""
    return "method" in query or "%" in query


def _list_parameters(query: str) -> Iterable[str]:
    """Return the different values of the parameter that names a method, in any spelling."""
    return map(unquote_plus, dict.fromkeys(_PARAMETER.findall(query)))


def join_methods(methods: tuple[str, ...]) -> str:
    """Return the methods of a request as one text, by which the rulebook finds its endpoint."""
    return METHOD_SEPARATOR.join(methods)
