"""The last guard before a line of text leaves the process: what looks like a secret, or is a known one, is taken out.

No code should log a secret; this is for the day when some does, and for texts of libraries.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Final

REDACTED: Final = "<redacted>"

_SECRET_NAME: Final = (
    r"(?:x-(?:\w+-)*(?:token|secret)|authorization|proxy-authorization|cookie|set-cookie|api[-_]?key|"
    r"\w*(?:secret|password|passwd|credential)\w*|\w*token|private[-_]?key)"
)
_SECRET_KEY: Final = re.compile(_SECRET_NAME, re.IGNORECASE)
_NO_SECRET_KEY: Final = re.compile(r"(?:accessor|token_name|tokens?_(?:count|total|ttl)|secret_?name)", re.IGNORECASE)

_PATTERNS: Final = (
    # `X-Cluster-Token: abc`, `password=abc`, `"SecretID": "abc"`. Of a scheme such as Bearer, what follows it goes too.
    (
        re.compile(
            rf"(?<![\w-])({_SECRET_NAME})(?P<q>[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|digest)\s+)?[^\s\"',;&}}\])]+",
            re.IGNORECASE,
        ),
        rf"\1\g<q>{REDACTED}",
    ),
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"(\w+://[^\s/:@]*):[^\s/@]+@"), rf"\1:{REDACTED}@"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), REDACTED),
)


# Most lines hold none of these, and looking for them costs a tenth of what the patterns do. Each pattern has its word.
_TRACES: Final = (
    *("token", "secret", "passw", "credential", "authorization", "cookie", "apikey", "api-key", "api_key"),
    *("private", "bearer", "basic", "@"),
)


class Redactor:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are texts known to be secret, such as passwords from the configuration."""
        # Longest first, so that one that holds another goes whole. What is very short would blacken the page.
        self._secrets = sorted((text for text in secrets if len(text) >= 4), key=len, reverse=True)

    def redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        lowered = text.lower()
        if any(trace in lowered for trace in _TRACES):
            for pattern, replacement in _PATTERNS:
                text = pattern.sub(replacement, text)
        return text

    def redact_fields(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Fields of a structured line: one whose name says that it is secret loses its value."""
        return {name: REDACTED if is_secret_name(name) else self._clean_value(value) for name, value in fields.items()}

    def _clean_value(self, value: object) -> object:
        if isinstance(value, bool | int | float | None):
            return value
        if isinstance(value, Mapping):
            return self.redact_fields({str(key): inner for key, inner in value.items()})
        if isinstance(value, list | tuple):
            return [self._clean_value(item) for item in value]
        return self.redact(str(value))


@functools.lru_cache(maxsize=1_024)
def is_secret_name(name: str) -> bool:
    return _SECRET_KEY.fullmatch(name) is not None and _NO_SECRET_KEY.search(name) is None
