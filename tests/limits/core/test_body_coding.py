"""Headers that say that a body is compressed, or not in UTF-8."""

import pytest

from wharf.limits.core.body_coding import is_body_coded


@pytest.mark.parametrize(
    ("types", "encodings"),
    [
        ([], []),
        (["application/json"], ["", "identity", " Identity "]),
        (["application/json; charset=utf-8"], []),
        (["application/vnd.git-lfs+json; Charset = UTF8 ; a=b"], []),
        (['application/json; charset="utf-8"'], []),
        (["text/plain;charset=US-ASCII", "application/json"], []),
    ],
)
def test_a_body_of_plain_utf_8_is_not_coded(types: list[str], encodings: list[str]) -> None:
    assert not is_body_coded(types, encodings)


@pytest.mark.parametrize(
    ("types", "encodings"),
    [
        ([], ["gzip"]),
        ([], ["identity", "br"]),
        ([], ["identity, deflate"]),
        (["application/json; charset=utf-7"], []),
        (["application/json; charset=utf-8; charset=utf-7"], []),
        (["application/json; charset=utf-8, utf-7; charset=utf-16"], []),
        (["application/json", "application/json; charset=utf-16"], []),
        (["application/json; charset*=utf-8''utf-7"], []),
        (["application/json; charset=utf-8x"], []),
        (["application/json; charset"], []),
    ],
)
def test_a_body_that_a_service_decodes_in_another_way_is_coded(types: list[str], encodings: list[str]) -> None:
    assert is_body_coded(types, encodings)
