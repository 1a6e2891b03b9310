"""One table from a refusal's code to a status, and back."""

import pytest

from wharf.model.refusal import Code
from wharf.wire.errors import STATUS_OF, refusal_of


def test_every_code_has_a_status() -> None:
    assert set(STATUS_OF) == set(Code)


@pytest.mark.parametrize("code", list(Code))
def test_a_code_survives_the_wire(code: Code) -> None:
    told = refusal_of(STATUS_OF[code], "why", code=code.value)

    assert (told.code, told.text) == (code, "why")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, Code.INVALID),
        (403, Code.FORBIDDEN),
        (404, Code.UNKNOWN),
        (405, Code.INVALID),
        (409, Code.CONFLICT),
        (413, Code.TOO_LARGE),
        (429, Code.LIMITED),
        (500, Code.UNDECIDED),
        (501, Code.NOT_OURS),
        (502, Code.UNDECIDED),
        (503, Code.UNAVAILABLE),
        (504, Code.UNDECIDED),
    ],
)
def test_a_status_without_a_code_says_what_it_can(status: int, code: Code) -> None:
    assert refusal_of(status, "why").code is code


def test_a_code_of_a_newer_server_is_read_by_its_status() -> None:
    assert refusal_of(404, "why", code="of-tomorrow").code is Code.UNKNOWN
