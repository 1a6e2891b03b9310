"""Keys that identity providers and auth methods supply: which are read, and what hostile ones cost."""

import base64
import json
import random
from contextlib import suppress
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from tests.attempts import limited_cpu
from tests.kit.loop_holds import MAX_HOLD_S, NOISE_FACTOR
from wharf.cluster.server.security.login_keys import (
    MAX_LOGIN_KEYS,
    load_assertion_key,
    load_pem_keys,
    read_key_set,
)
from wharf.world.key_sets import UnusableKeys

URL = "https://login.example/keys"
RANDOM = random.Random(1)
PRIVATE = RSAKey.generate_key(2048, {"kid": "one"})
LARGEST_DOCUMENT_BYTES = 256 * 1024


def encode_number(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8)).decode().rstrip("=")


def draw_number(bits: int) -> int:
    return RANDOM.getrandbits(bits) | 1 | 1 << (bits - 1)


def a_key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def without_primes(bits: int) -> dict[str, str]:
    """A private key of random numbers, whose primes a library would search for without an end."""
    numbers = {"n": draw_number(bits), "e": 65_537, "d": draw_number(bits)}
    return {"kty": "RSA", **{name: encode_number(number) for name, number in numbers.items()}}


def fill_document(key: Any) -> bytes:
    """Return the largest document of a provider with copies of this key."""
    return a_key_set(*[key] * (LARGEST_DOCUMENT_BYTES // (len(json.dumps(key)) + 2) - 1))


HOSTILE_KEY_SETS = {
    "an RSA key without primes": a_key_set(without_primes(32_768)),
    "the largest RSA key without primes": a_key_set(without_primes(600_000)),
    "a small RSA key without primes": a_key_set(*[without_primes(2_048)] * MAX_LOGIN_KEYS),
    "private RSA keys": a_key_set(*[PRIVATE.as_dict(private=True)] * MAX_LOGIN_KEYS),
    "a long exponent": a_key_set({"kty": "RSA", "n": encode_number(draw_number(4_096)), "e": "_" * 5_462}),
    "points outside of the curve": a_key_set(*[{"kty": "EC", "crv": "P-521", "x": "BQ", "y": "Bw"}] * MAX_LOGIN_KEYS),
    "a long point": a_key_set({"kty": "EC", "crv": "P-521", "x": "_" * 200_000, "y": "Bw"}),
    "a long Ed448 key": a_key_set({"kty": "OKP", "crv": "Ed448", "x": "A" * 250_000}),
    "Ed448 keys": a_key_set(*[OKPKey.generate_key("Ed448").as_dict(private=False)] * MAX_LOGIN_KEYS),
    "P-521 keys of one name": a_key_set(
        *[{**ECKey.generate_key("P-521").as_dict(private=False), "kid": "one"}] * MAX_LOGIN_KEYS
    ),
    "empty keys": fill_document({}),
    "keys of an unknown type": fill_document({"kty": "x"}),
    "many operations": a_key_set({"kty": "RSA", "n": "AQAB", "e": "AQAB", "key_ops": ["verify"] * 20_000}),
    "a long number": b'{"keys":[{"kty":' + b"9" * 250_000 + b"}]}",
    "nested lists": b'{"keys":' + b"[" * 250_000,
    "nested unknown members": b'{"keys":[],"x":' + b"[" * 250_000,
}


@pytest.mark.parametrize("name", HOSTILE_KEY_SETS)
def test_a_hostile_key_set_costs_less_cpu_time_than_the_event_loop_may_be_held(name: str) -> None:
    with limited_cpu(MAX_HOLD_S * NOISE_FACTOR, name), suppress(UnusableKeys):
        read_key_set(HOSTILE_KEY_SETS[name], f"{URL}/{name}")


def test_an_unusable_key_set_is_parsed_once() -> None:
    body = a_key_set(*[ECKey.generate_key("P-521").as_dict(private=False)] * (MAX_LOGIN_KEYS - 1), {"kty": "RSA"})

    with limited_cpu(1.0, "1,000 readings"):
        for _ in range(1_000):
            with pytest.raises(UnusableKeys):
                read_key_set(body, URL)


def test_the_private_members_of_a_key_are_not_read() -> None:
    keys = read_key_set(a_key_set(PRIVATE.as_dict(private=True)), URL)

    assert [key.as_dict() for key in keys] == [PRIVATE.as_dict(private=False)]
    assert not keys.keys[0].is_private


def test_keys_that_verify_no_login_are_left_out() -> None:
    unused = [
        {"kty": "unknown"},
        {},
        OctKey.generate_key().as_dict(),
        OKPKey.generate_key("X25519").as_dict(private=False),
        ECKey.generate_key("secp256k1").as_dict(private=False),
    ]

    keys = read_key_set(a_key_set(*unused, PRIVATE.as_dict(private=False)), URL)

    assert [key.kid for key in keys] == ["one"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (a_key_set(), f"{URL} has no public key of a supported type"),
        (b"{}", f"cannot read the keys at {URL}: Object missing required field `keys`"),
        (b"<html>", f"cannot read the keys at {URL}: JSON is malformed"),
        (a_key_set({"kty": "RSA", "n": 5}), f"cannot read the keys at {URL}: Expected `str | null`, got `int`"),
        (a_key_set({"kty": "RSA", "e": "AQAB"}), f"cannot read the keys at {URL}: 'n' is required"),
        (a_key_set({"kty": "RSA", "n": "?", "e": "AQAB"}), f"cannot read the keys at {URL}: "),
        (a_key_set({"kty": "RSA", "n": "_" * 2_049, "e": "AQAB"}), "has 2,049 characters, more than 2,048"),
        (a_key_set({"kty": "RSA", "n": "_" * 1_367, "e": "AQAB"}), "an RSA key has 8200 bits, more than 8192"),
        (a_key_set({"kty": "RSA", "n": "_" * 300, "e": "_" * 12}), "the exponent of an RSA key has 72 bits"),
        (a_key_set({"kty": "EC", "crv": "P-256", "x": "BQ", "y": "Bw"}), "Point is not on the curve"),
    ],
)
def test_an_unusable_key_set_is_refused_with_the_reason(body: bytes, text: str) -> None:
    with pytest.raises(UnusableKeys) as caught:
        read_key_set(body, URL)

    assert text in str(caught.value)


def a_pem(key: Any, *, password: bytes = b"") -> str:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return str(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode())


@pytest.mark.parametrize(
    ("form", "bits"),
    [
        (PrivateFormat.PKCS8, 2_048),
        (PrivateFormat.PKCS8, 3_072),  # The first characters contain a slash, which base64url does not have.
        (PrivateFormat.TraditionalOpenSSL, 2_048),
    ],
)
def test_an_assertion_key_is_read_in_both_forms_of_an_rsa_key(form: PrivateFormat, bits: int) -> None:
    key = rsa.generate_private_key(65_537, bits)
    text = "a comment\n" + key.private_bytes(Encoding.PEM, form, NoEncryption()).decode().replace("\n", "\r\n")

    assert load_assertion_key(text).private_key is not None


def encode_der(tag: int, *contents: bytes) -> bytes:
    data = b"".join(contents)
    size = len(data).to_bytes((len(data).bit_length() + 7) // 8)
    return bytes([tag]) + (bytes([0x80 | len(size)]) + size if len(data) > 127 else bytes([len(data)])) + data


def encode_integer(number: int) -> bytes:
    return encode_der(2, number.to_bytes(number.bit_length() // 8 + 1))


def a_long_dsa_key(bits: int) -> str:
    """A private DSA key of random numbers, whose public number takes a library minutes to compute."""
    parameters = encode_der(0x30, *map(encode_integer, (draw_number(bits), draw_number(256), draw_number(bits - 1))))
    algorithm = encode_der(0x30, bytes.fromhex("06072a8648ce380401"), parameters)
    key = encode_der(0x30, encode_integer(0), algorithm, encode_der(4, encode_integer(draw_number(250))))
    data = base64.b64encode(key).decode()
    lines = "\n".join(data[start : start + 64] for start in range(0, len(data), 64))
    return f"-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected an RSA key in PEM form, without a password"),
        (a_pem(ec.generate_private_key(ec.SECP256R1())), "expected an RSA key in PEM form"),
        (a_pem(dsa.generate_private_key(1_024)), "expected an RSA key in PEM form"),
        (a_pem(rsa.generate_private_key(65_537, 2_048), password=b"x"), "without a password"),
        (a_long_dsa_key(40_000), "expected an RSA key in PEM form"),
        (a_long_dsa_key(1 << 18), "characters, more than 16,384"),
        ("-----BEGIN PRIVATE KEY-----\n" * 500, "expected an RSA key in PEM form"),
        (f"-----BEGIN RSA PRIVATE KEY-----\n{'A' * 12_000}\n-----END RSA PRIVATE KEY-----", ""),
    ],
)
def test_an_assertion_key_that_cannot_sign_is_refused_before_it_costs_cpu_time(text: str, problem: str) -> None:
    with limited_cpu(MAX_HOLD_S * NOISE_FACTOR, "the refusal"), pytest.raises(UnusableKeys) as caught:
        load_assertion_key(text)

    assert problem in str(caught.value)


def test_an_assertion_key_that_signs_for_too_long_is_refused() -> None:
    with pytest.raises(UnusableKeys, match="it has 5120 bits, more than 4096"):
        load_assertion_key(a_pem(rsa.generate_private_key(65_537, 5_120)))


def test_a_public_key_of_an_auth_method_that_is_too_long_is_refused() -> None:
    text = PRIVATE.as_pem(private=False).decode()

    assert len(load_pem_keys((text,)).keys) == 1
    with pytest.raises(UnusableKeys, match="has 16,385 characters, more than 16,384"):
        load_pem_keys((text.ljust(16_385),))
