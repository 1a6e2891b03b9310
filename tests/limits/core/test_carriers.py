"""Which credentials a request carries, and what identifies each of them."""

import pytest

from tests.limits.decision_services import encode_basic
from wharf.limits.core.callers.carriers import (
    MAX_CREDENTIALS,
    BasicForm,
    CarrierSettings,
    find_carried,
    get_claim,
    list_credentials,
)

TOKEN = "a-token-of-many-characters"
SETTINGS = CarrierSettings(headers=("private-token",), cookies=("session",), query=("token",))


def list_secrets(
    authorization: str | None = None,
    *,
    carried: tuple[tuple[str, str], ...] = (),
    query: str = "",
    settings: CarrierSettings = SETTINGS,
) -> list[str]:
    return [found.secret for found in list_credentials(authorization, carried, query, settings)]


@pytest.mark.parametrize(
    "header",
    [
        f"Bearer {TOKEN}",
        f"token  {TOKEN} ",
        encode_basic("anybody", TOKEN),
        encode_basic(TOKEN, ""),
        encode_basic(TOKEN, "x-oauth-basic"),
    ],
)
def test_a_token_is_the_same_in_each_form_of_the_header(header: str) -> None:
    assert list_secrets(header) == [TOKEN]


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        (encode_basic("bob", "hunter2"), "basic bob:hunter2"),
        (encode_basic("bob", "a password with spaces in it"), "basic bob:a password with spaces in it"),
        (encode_basic("", ""), "basic :"),
        ("Basic !!!", "basic !!!"),
        ("Basic " + "A" * 5_000, "basic " + "A" * 5_000),
        ("Digest a=1", "digest a=1"),
        ("Bearer", ""),
    ],
)
def test_other_headers_are_credentials_as_a_whole(header: str, secret: str) -> None:
    assert list_secrets(header) == [secret]


@pytest.mark.parametrize(
    "form", ["Ym9iOnB3PDw/", "Ym9iOnB3PDw_", "Ym9i.OnB3\tPDw/", "Ym9iOnB3PDw/====", "Ym9iOnB3PDw/A"]
)
def test_a_password_is_the_same_in_each_form_that_services_decode(form: str) -> None:
    assert list_secrets(f"Basic {form}") == ["basic bob:pw<<?"]


@pytest.mark.parametrize("form", ["Ym9iOnB3", "Ym9iOnB3=", "Ym9iOnB3=Y"])
def test_basic_authentication_ends_with_its_padding(form: str) -> None:
    assert list_secrets(f"Basic {form}") == ["basic bob:pw"]


@pytest.mark.parametrize("form", ["a b/c", "a%20b%2Fc", "a+b%2fc", '"a b/c"', '"a\\040b\\/c"', '"a%20b\\057c"'])
def test_a_session_is_the_same_in_each_form_that_services_decode(form: str) -> None:
    for name in ("session", "sessio%6E"):
        carried = find_carried([(b"cookie", f"{name}={form}".encode())], SETTINGS)

        assert list_secrets(carried=carried) == ["cookie session a b/c"]


def test_sessions_of_different_bytes_are_different() -> None:
    first, second = (list_secrets(carried=(("cookie session", value),)) for value in ("%FF%FE", "%FE%FF"))

    assert first != second


def test_the_forms_of_basic_authentication_can_be_limited() -> None:
    settings = CarrierSettings(basic=(BasicForm.USER_PASSWORD,))

    assert list_secrets(encode_basic("bob", TOKEN), settings=settings) == [f"basic bob:{TOKEN}"]


def test_configured_headers_and_cookies_are_found_and_others_are_not() -> None:
    headers = [
        (b"private-token", b" one "),
        (b"other-token", b"two"),
        (b"cookie", b"a=1; session=three; sessions=4;session"),
        (b"cookie", b"session=five"),
    ]
    carried = find_carried(headers, SETTINGS)

    assert carried == (("header private-token", "one"), ("cookie session", "three"), ("cookie session", "five"))
    assert list_secrets(carried=carried) == ["one", "cookie session three", "cookie session five"]
    assert find_carried(headers, CarrierSettings()) == ()


@pytest.mark.parametrize("configured", ["private-token", "private_token"])
@pytest.mark.parametrize("sent", [b"private-token", b"private_token", b"private.token"])
def test_a_header_is_found_in_each_spelling_that_services_cannot_tell_apart(configured: str, sent: bytes) -> None:
    """WSGI and CGI write each sign of a name that is not a letter or digit as `_`."""
    carried = find_carried([(sent, b"one")], CarrierSettings(headers=(configured,)))

    assert carried == ((f"header {configured}", "one"),)


def test_query_parameters_are_decoded_and_only_configured_ones_are_read() -> None:
    assert list_secrets(query="x=1&token=a%2Fb&access_token=c&tok%65n=d&token=") == ["a/b", "d"]


def test_a_request_has_a_limited_number_of_credentials_of_limited_length() -> None:
    assert len(list_secrets("Bearer x", query="&".join(["token=y"] * 1_000))) == MAX_CREDENTIALS
    assert list_secrets("Bearer " + "x" * 20_000) == []


def test_a_bearer_prefix_in_a_configured_header_is_no_part_of_the_token() -> None:
    assert list_secrets(carried=(("header private-token", f"Bearer {TOKEN}"),)) == [TOKEN]


@pytest.mark.parametrize(
    ("name", "value"),
    [("login", "ada"), ("user.name", "eve"), ("user", {"name": "eve"}), ("user.name.x", None), ("no", None)],
)
def test_a_dotted_name_selects_a_member_of_a_member(name: str, value: object) -> None:
    assert get_claim({"login": "ada", "user": {"name": "eve"}}, name) == value
