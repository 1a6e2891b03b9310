"""Removes secrets from texts before they leave the process: known secrets, and text that looks like one.

No code should log a secret. This is a second defense, and it covers messages of libraries.
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
_HARMLESS_KEY: Final = re.compile(r"(?:accessor|token_name|tokens?_(?:count|total|ttl)|secret_?name)", re.IGNORECASE)

_PATTERNS: Final = (
    # `X-Cluster-Token: abc`, `password=abc`, `"SecretID": "abc"`. After a scheme such as Bearer, the credential is removed too.
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


# Most lines contain none of these words, and searching for them costs a tenth of matching the patterns. Every pattern
# matches only text with one of these words.
_TRIGGER_WORDS: Final = re.compile(
    "token|secret|passw|credential|authorization|cookie|apikey|api-key|api_key|private|bearer|basic|@"
)


class Redactor:
    """Replaces secrets in texts and in fields of log lines."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are texts known to be secret, such as passwords from the configuration."""
        # Longest first, so that a secret that contains another one is replaced completely. Very short secrets are ignored,
        # because they would match ordinary text.
        self._secrets = sorted((text for text in secrets if len(text) >= 4), key=len, reverse=True)

    def redact(self, text: str) -> str:
        """Return the text with secrets replaced."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        if _TRIGGER_WORDS.search(text.lower()):
            for pattern, replacement in _PATTERNS:
                text = pattern.sub(replacement, text)
        return text

    def redact_fields(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Return the fields with secret values replaced. A field is secret if its name says so."""
        return {name: REDACTED if is_secret_name(name) else self._redact_value(value) for name, value in fields.items()}

    def _redact_value(self, value: object) -> object:
        """Return a field's value with secrets replaced, also inside of maps and lists.

        A value of another type becomes text.
        """
        if isinstance(value, bool | int | float | None):
            return value
        if isinstance(value, Mapping):
            return self.redact_fields({str(key): inner for key, inner in value.items()})
        if isinstance(value, list | tuple):
            return [self._redact_value(item) for item in value]
        return self.redact(str(value))


@functools.lru_cache(maxsize=1_024)
def is_secret_name(name: str) -> bool:
    """Return whether a field or variable with this name holds a secret."""
    return _SECRET_KEY.fullmatch(name) is not None and _HARMLESS_KEY.search(name) is None
