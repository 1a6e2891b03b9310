"""Reads the forms that browsers send."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

MAX_FORM_BYTES: Final = 2 * 1024 * 1024
"""The largest form is a job file, of which the API accepts 1 MB; a form writes some characters as three."""
MAX_FORM_FIELDS: Final = 200
FORM_TIMEOUT_S: Final = 20.0
"""How long a browser may take to send a form."""
FORM_TYPE: Final = b"application/x-www-form-urlencoded"
NUMBER_PATTERN: Final = re.compile(r"-?[0-9]{1,15}")


class FormRefused(Exception):
    """The error for a form that is not accepted, with the status of the reply."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def read_form(
    headers: Mapping[bytes, bytes], receive: Callable[[], Awaitable[Any]], *, timeout_s: float = FORM_TIMEOUT_S
) -> dict[str, str]:
    """Return the fields of the form; the last one wins if a name occurs twice. Raises `FormRefused`."""
    if headers.get(b"content-type", FORM_TYPE).partition(b";")[0].strip().lower() != FORM_TYPE:
        raise FormRefused(415, "Forms are sent as application/x-www-form-urlencoded.")
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise FormRefused(400, "The form did not arrive completely.")
                body += message.get("body", b"")
                if len(body) > MAX_FORM_BYTES:
                    raise FormRefused(413, f"The form is larger than {MAX_FORM_BYTES:,} bytes.")
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise FormRefused(408, f"The form did not arrive within {timeout_s:g} s.") from None
    try:
        return dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
    except ValueError:
        raise FormRefused(400, f"The form is not valid, or has more than {MAX_FORM_FIELDS} fields.") from None


def read_number(form: Mapping[str, str], name: str, default: int) -> int:
    """Return a field of a form as a number; `default` if it is missing or empty. Raises `FormRefused`."""
    text = form.get(name, "").strip()
    if not text:
        return default
    if not NUMBER_PATTERN.fullmatch(text):
        raise FormRefused(400, f"{name}: expected a whole number, got {text[:40]!r}.")
    return int(text)
