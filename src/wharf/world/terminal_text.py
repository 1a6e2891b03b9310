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

COLOR_SEQUENCE: Final = re.compile(r"\x1b\[[0-9;:]*m")
"""Sets colors and weights of the text that follows."""
CONTROL_SEQUENCE: Final = re.compile(
    r"\r\n"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: moves the cursor, clears, or sets colours and modes.
    # OSC, DCS, SOS, PM and APC: titles, links, the clipboard. They end with BEL or ST, and for us also with the line.
    r"|\x1b[\]PX^_][^\x07\x1b\n\x9c]*(?:\x07|\x1b\\|\x9c|(?=[\x1b\n]))"
    r"|\x1b[ -/]+[0-~]"  # Character sets.
    r"|\x1b[0-Z\\`-~]"  # Single functions, such as ESC c, which resets the terminal.
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # Single control characters, such as BEL and the 8-bit CSI.
)
"""What a program sends to control a terminal, and a carriage return."""


def escape_controls(text: str) -> str:
    r"""Return the text with escapes such as `\u001b` in place of characters that control a terminal.

    Line breaks and tabs stay. The escapes are those of JSON, so that a JSON document stays one.
    """
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
