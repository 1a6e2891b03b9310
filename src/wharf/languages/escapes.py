r"""Backslash escapes in quoted strings, as in Go: letters, bytes (`\x41`, `\101`) and characters (`\u00e9`, `\U0001F600`)."""

import re
from typing import Final

_ESCAPE: Final = re.compile(
    r'\\(?:(?P<letter>[abfnrtv\\"])|x(?P<byte>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})'
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))"
)
_LETTER_ESCAPES: Final = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v", "\\": b"\\", '"': b'"',
}  # fmt: skip


class InvalidEscape(ValueError):
    """A backslash at `offset` does not start an escape."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"no such escape at offset {offset}")
        self.offset = offset


def replace_escapes(text: str) -> str:
    """Return the inside of a quoted string with its escapes replaced.

    Raises `InvalidEscape`, and `UnicodeDecodeError` if escaped bytes do not form UTF-8 with the rest of the text.
    """
    if "\\" not in text:
        return text
    pieces = []
    copied_to = 0
    while (slash := text.find("\\", copied_to)) >= 0:
        pieces.append(text[copied_to:slash].encode())
        escape = _ESCAPE.match(text, slash)
        decoded = _decode_escape(escape) if escape else None
        if escape is None or decoded is None:
            raise InvalidEscape(slash)
        pieces.append(decoded)
        copied_to = escape.end()
    pieces.append(text[copied_to:].encode())
    return b"".join(pieces).decode()


def _decode_escape(escape: re.Match[str]) -> bytes | None:
    """Return the UTF-8 bytes that an escape stands for, or `None` if it is not a valid character."""
    if escape["letter"]:
        return _LETTER_ESCAPES[escape["letter"]]
    if escape["byte"]:
        return bytes([int(escape["byte"], 16)])
    if escape["octal"]:
        return bytes([int(escape["octal"], 8)])
    number = int(escape["short"] or escape["long"], 16)
    is_character = number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF
    return chr(number).encode() if is_character else None
