"""The mapping between refusal codes and HTTP statuses."""

import pytest

from wharf.contract.model.refusal import RefusalCode, RefusalReason
from wharf.contract.wire.errors import STATUS_BY_CODE, build_refusal


def test_every_code_has_a_status() -> None:
    assert set(STATUS_BY_CODE) == set(RefusalCode)


@pytest.mark.parametrize("code", list(RefusalCode))
def test_a_refusal_code_is_restored_from_its_header(code: RefusalCode) -> None:
    refusal = build_refusal(STATUS_BY_CODE[code], "why", code=code.value)

    assert (refusal.code, refusal.text) == (code, "why")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, RefusalCode.INVALID),
        (403, RefusalCode.FORBIDDEN),
        (404, RefusalCode.NOT_FOUND),
        (405, RefusalCode.INVALID),
        (409, RefusalCode.CONFLICT),
        (413, RefusalCode.TOO_LARGE),
        (429, RefusalCode.RATE_LIMITED),
        (500, RefusalCode.OUTCOME_UNKNOWN),
        (501, RefusalCode.NOT_IMPLEMENTED),
        (502, RefusalCode.OUTCOME_UNKNOWN),
        (503, RefusalCode.UNAVAILABLE),
        (504, RefusalCode.OUTCOME_UNKNOWN),
    ],
)
def test_a_status_without_a_code_maps_to_a_refusal_code(status: int, code: RefusalCode) -> None:
    assert build_refusal(status, "why").code is code


@pytest.mark.parametrize("reason", list(RefusalReason))
def test_a_refusal_reason_is_restored_from_its_header(reason: RefusalReason) -> None:
    assert build_refusal(400, "why", code="invalid", reason=reason.value).reason is reason
    assert build_refusal(400, "why", reason=reason.value).reason is reason


def test_an_unknown_reason_counts_as_unspecified() -> None:
    assert build_refusal(404, "why", code="unknown", reason="of-tomorrow").reason is RefusalReason.UNSPECIFIED


def test_an_unknown_code_is_replaced_by_that_of_the_status() -> None:
    assert build_refusal(404, "why", code="of-tomorrow").code is RefusalCode.NOT_FOUND
