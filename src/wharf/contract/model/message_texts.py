"""Texts for users that may repeat input: errors, warnings and validation problems. Long input is cut, also in replies with
status 200.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeVar

import msgspec
from msgspec.structs import fields, replace

from wharf.contract.model.body_limits import MAX_ECHOED_CHARS, cut_echo

LONG_WORD_PATTERN: Final = re.compile(rf"(\S{{{MAX_ECHOED_CHARS}}})\S+")
"""Text without white space that is longer than any word of a message, so it is input of the caller."""
QUOTED_PATTERN: Final = re.compile(r'"([^"\n]*)"')
"""A value in a message. Messages put values of the caller in double quotes."""
MAX_LINE_CHARS: Final = 600
"""The longest line of a message. Limits input that is not in quotes; the sentences of Wharf are shorter."""
MAX_SCANNED_CHARS: Final = 100_000
"""The middle of a longer text is dropped before it is searched for input: a search of 100,000 characters takes up to 10 ms."""
MAX_SCANNED_MESSAGE_CHARS: Final = 4_096
"""The same limit for one validation problem or warning, of which a reply may have many."""
MESSAGE_FIELDS: Final = frozenset(("error", "validation_errors", "warning", "warnings"))
"""Fields of reply messages that hold texts for users, by their name. Replies of every type are searched for them."""

_Reply = TypeVar("_Reply")


def format_message(text: str, inputs: Iterable[str] = ()) -> str:
    """Return the only text of a reply as it is sent. See `cut_message`."""
    return cut_message(text, inputs, max_scanned_chars=MAX_SCANNED_CHARS)


def cut_message(text: str, inputs: Iterable[str] = (), *, max_scanned_chars: int) -> str:
    """Return a text as it is sent: without a line break at the end, and with long input cut.

    `inputs` are values of the request that the text may repeat. Input is cut after `MAX_ECHOED_CHARS` characters. A
    character that does not exist (a lone surrogate) is written as its escape, because UTF-8 has no bytes for it.
    """
    text = text.encode(errors="backslashreplace").decode()
    if len(text) > MAX_ECHOED_CHARS:
        for value in inputs:
            if len(value) > MAX_ECHOED_CHARS:
                text = text.replace(value, cut_echo(value))
        if len(text) > max_scanned_chars:
            text = f"{text[: max_scanned_chars // 2]}...{text[-max_scanned_chars // 2 :]}"
        text = LONG_WORD_PATTERN.sub(r"\1...", text)
        text = QUOTED_PATTERN.sub(lambda quoted: f'"{cut_echo(quoted[1])}"', text)
        text = "\n".join(
            line if len(line) <= MAX_LINE_CHARS else line[:MAX_LINE_CHARS] + "..." for line in text.split("\n")
        )
    return text.rstrip("\n")


def format_reply_messages(reply: _Reply) -> _Reply:
    """Return a reply with all of its texts for users formatted; any other value as it is."""
    reply_type: type = type(reply)
    names = list_message_fields(reply_type)
    if not names:
        return reply
    texts = {name: _format_field(getattr(reply, name)) for name in names}
    return replace(reply, **texts)  # type: ignore[type-var] # Only structs have message fields.


@lru_cache(maxsize=1_024)
def list_message_fields(reply_type: type) -> tuple[str, ...]:
    """Return the fields of a reply type that hold texts for users; none if the type is not a struct."""
    if not issubclass(reply_type, msgspec.Struct):
        return ()
    return tuple(field.name for field in fields(reply_type) if field.name in MESSAGE_FIELDS)


def _format_field(value: object) -> object:
    """Return a text, or each text of a tuple, as it is sent."""
    if isinstance(value, str):
        return format_message(value)
    return tuple(map(format_message, value)) if isinstance(value, tuple) else value
