"""Asks before a form ends or changes something, if the script of the pages has not asked: on a page, which needs no script."""

from typing import Final
from urllib.parse import urlencode

import msgspec

from wharf.web.page import Page, PageRequest

CONFIRMED: Final = "confirmed"
"""The field of a form that was confirmed. The script of the pages adds it after its own question."""
TEXT_FIELDS: Final = ("reason", "message", "note")
"""Fields that people write. Others are part of the question."""


class ConfirmationView(msgspec.Struct, frozen=True):
    """The question, with the form that was sent."""

    question: str
    consequence: str
    warning: str
    button: str
    form_url: str
    fields: tuple[tuple[str, str], ...]
    cancel_url: str

    @property
    def entered(self) -> tuple[tuple[str, str], ...]:
        """What the person has written, to be checked: the fields with texts."""
        return tuple((name, value) for name, value in self.fields if name in TEXT_FIELDS and value)


def is_confirmed(request: PageRequest) -> bool:
    """Return whether the person has confirmed the form of the request."""
    return request.form.get(CONFIRMED) == "yes"


def ask_first(
    request: PageRequest, question: str, consequence: str, *, button: str, cancel_url: str, warning: str = ""
) -> Page:
    """Return the page that asks the question. Its form is the one of the request, confirmed."""
    query = f"?{urlencode(request.query)}" if request.query else ""
    view = ConfirmationView(
        question=question,
        consequence=consequence,
        warning=warning,
        button=button,
        form_url=request.path + query,
        fields=tuple((name, value) for name, value in request.form.items() if name != CONFIRMED),
        cancel_url=cancel_url,
    )
    return Page("confirm.html", question, view)
