"""Escapes the characters that control a terminal or change the order of a text, in text that other people wrote."""

import re
from typing import Final

_CONTROLS: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # All control characters except line break and tab, with the 8-bit CSI and OSC.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # They change the direction of the text around them.
    "\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f"  # Line separators, annotations, and invisible tags.
    "]"
)


def escape_controls(text: str) -> str:
    r"""Return the text with escapes such as `\u001b` in place of characters that control a terminal.

    Line breaks and tabs stay. The escapes are those of JSON, so that a JSON document stays one.
    """
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
