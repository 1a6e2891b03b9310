"""Whether a request says that its body is something else than plain JSON in UTF-8: compressed, or in another character set.

A service decodes such a body before it reads it. So the same bytes can be other JSON for the limiter than for the service.
"""

import re
from collections.abc import Iterable
from typing import Final

CODED_BODY: Final = (
    "The headers of the request say that its body is compressed, or not in UTF-8. Send JSON in UTF-8 that is not compressed, and "
    "leave out Content-Encoding and other character sets."
)
"""The refusal of a coded body whose content decides what the request costs."""
_PLAIN_ENCODINGS: Final = frozenset({"", "identity"})
_CHARSET: Final = re.compile("charset")
_PLAIN_CHARSET: Final = re.compile(r'charset[ \t]*=[ \t]*"?(?:utf-?8|us-ascii)"?[ \t]*(?=[;,]|$)')


def is_body_coded(content_types: Iterable[str], content_encodings: Iterable[str]) -> bool:
    """Return whether a body is coded, by the values of `Content-Type` and `Content-Encoding`.

    Each mention of a character set must be a plain one: services differ in which of several they use, and in how they read
    forms such as `charset*=`.
    """
    if any(value.strip(" \t").lower() not in _PLAIN_ENCODINGS for value in content_encodings):
        return True
    lowered = [value.lower() for value in content_types]
    return any(len(_CHARSET.findall(value)) != len(_PLAIN_CHARSET.findall(value)) for value in lowered)
