"""Credentials of requests: which headers hold a token, and which headers two programs could read differently."""

import pytest

from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.credentials import TOKEN_CONFLICT_TEXT, read_credentials, read_token

Headers = list[tuple[bytes, bytes]]
NODE_SECRET, SERVER_SECRET = b"x-cluster-node-secret", b"x-cluster-door-secret"


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ([], ""),
        ([(b"x-cluster-token", b" a\t")], "a"),
        ([(b"x-cluster-token", b"a"), (b"authorization", b"Bearer a")], "a"),
        ([(b"x-cluster-token", b"  "), (b"authorization", b"Bearer b")], "b"),
        ([(b"x-cluster-token", b"a"), (b"authorization", b"Basic b")], "a"),
        ([(b"x-cluster-token", b"a"), (b"x-cluster-token", b"a")], "a"),
        ([(b"x-cluster-token", b"no secret at all")], "no secret at all"),
        ([(b"authorization", b"bEaReR  b c")], "b"),
        ([(b"authorization", b"Basic b")], ""),
        ([(b"authorization", b'Digest username="me", uri="/"')], ""),
        ([(b"authorization", b"Bearer")], ""),
        ([(b"authorization", b"Bearerb")], ""),
        ([(b"x-nomad-token", b"n")], ""),
    ],
)
def test_a_token_is_read_from_the_token_header_or_a_bearer_header(headers: Headers, token: str) -> None:
    assert token == read_token(read_credentials(headers))


@pytest.mark.parametrize("headers", [[(b"x-nomad-token", b"n")], [(b"x-nomad-token", b"n"), (b"x-cluster-token", b"")]])
def test_nomads_token_header_counts_only_if_its_headers_are_accepted(headers: Headers) -> None:
    assert ["", "n"] == [
        read_token(read_credentials(headers, is_nomad_compatible=is_compatible)) for is_compatible in (False, True)
    ]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-cluster-token", b"a"), (b"authorization", b"Bearer b")],
        [(b"x-cluster-token", b"a"), (b"x-cluster-token", b"b")],
        [(b"x-cluster-token", b"a"), (b"x-cluster-token", b"")],
        [(b"authorization", b"Bearer a"), (b"authorization", b"bearer b")],
        [(b"authorization", b"Bearer a"), (b"authorization", b"Basic b")],
        [(b"authorization", b"Bearer a"), (b"authorization", b"")],
        [(b"x-cluster-token", b"a"), (b"x-nomad-token", b"b")],
    ],
)
def test_two_tokens_are_refused(headers: Headers) -> None:
    with pytest.raises(Refusal) as refused:
        read_credentials(headers, is_nomad_compatible=True)

    assert TOKEN_CONFLICT_TEXT == refused.value.text


@pytest.mark.parametrize(
    "character", [b"\x00", b"\t", b"\x0b", b"\x1c", b"\x1f", b"\x7f", b"\x85", b"\xa0", b"\xc2\xa0"]
)
def test_a_bearer_header_with_a_character_that_parsers_read_differently_is_refused(character: bytes) -> None:
    for value in (b"Bearer" + character + b"b", b"Bearer b" + character + b"c", b"Bearer b" + character + b" c"):
        with pytest.raises(Refusal, match="not printable ASCII"):
            read_credentials([(b"authorization", value)])


@pytest.mark.parametrize("character", ["\x0b", "\x1c", "\x85", "\xa0"])
def test_a_character_that_only_some_parsers_take_for_white_space_is_part_of_a_token(character: str) -> None:
    value = character.encode("latin-1")

    assert f"a{character}" == read_token(read_credentials([(b"x-cluster-token", b"a" + value)]))
    assert b"a" + value == read_credentials([(NODE_SECRET, b"a" + value)])[NODE_SECRET]


@pytest.mark.parametrize("value", [b"Bearer a, Bearer b", b"Bearer a ,Bearer b", b"Basic a, bearer b", b"Bearer a,b"])
def test_two_credentials_that_a_proxy_joined_are_refused(value: bytes) -> None:
    with pytest.raises(Refusal, match="several credentials"):
        read_credentials([(b"authorization", value)])


@pytest.mark.parametrize("name", [NODE_SECRET, SERVER_SECRET])
def test_two_different_secrets_of_a_node_or_server_are_refused(name: bytes) -> None:
    with pytest.raises(Refusal, match="with different values: send one"):
        read_credentials([(name, b"a"), (name, b"b")])
