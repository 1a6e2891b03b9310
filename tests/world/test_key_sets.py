"""JSON Web Key sets: which keys are read, and which sets are refused."""

import json

import pytest
from joserfc.jwk import ECKey, RSAKey

from wharf.world.key_sets import MAX_KEYS, UnusableKeys, read_public_keys

RSA = RSAKey.generate_key(2048)


def a_key_set(*keys: object) -> bytes:
    return json.dumps({"keys": keys}).encode()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"text", "cannot read the keys at keys.json: JSON is malformed"),
        (b"[" * 100_000, "cannot read the keys at keys.json: "),
        (a_key_set(), "keys.json has no public key of a supported type"),
        (a_key_set({"kty": "oct", "k": "c2VjcmV0"}), "keys.json has no public key of a supported type"),
        (a_key_set({"kty": "RSA", "n": "AQAB"}), "cannot read the keys at keys.json: 'e' is required"),
        (a_key_set({"kty": "RSA", "n": "A" * 3_000, "e": "AQAB"}), "has 3,000 characters, more than 2,048"),
        (a_key_set({"kty": "RSA", "n": "AQAB", "e": "_" * 20}), "the exponent of an RSA key has 120 bits"),
        (a_key_set(*[{"kty": "RSA"}] * (MAX_KEYS + 1)), "keys.json has 101 keys, more than 100"),
    ],
)
def test_a_key_set_that_cannot_be_used_is_refused_with_the_reason(body: bytes, problem: str) -> None:
    with pytest.raises(UnusableKeys) as caught:
        read_public_keys(body, "keys.json")

    assert problem in str(caught.value)


def test_a_key_without_an_id_gets_none() -> None:
    keys = read_public_keys(a_key_set(RSA.as_dict(private=False, kid=None), ECKey.generate_key("P-256").as_dict()), "x")

    assert [key.kid for key in keys] == [None, None]


def test_private_members_are_not_read() -> None:
    (key,) = read_public_keys(a_key_set(RSA.as_dict(private=True)), "keys.json")

    assert not key.is_private
