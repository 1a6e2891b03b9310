"""Sealed messages between regions: only the recipient can open them, and only for their context."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.server.security.sealed_messages import MessageRecipient, SealedMessage, seal_message
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import SimulatedWorld


def make_world(seed: int = 1) -> SimulatedWorld:
    return SimulatedWorld(seed, asyncio.get_running_loop().time)


@in_virtual_time
async def test_a_sealed_message_is_readable_only_by_its_recipient() -> None:
    box = MessageRecipient(make_world())

    letter = seal_message(make_world(2), box.public_key, b"a client's secret", context="people")

    assert box.open(letter, context="people") == b"a client's secret"
    assert b"secret" not in letter.sealed


@in_virtual_time
async def test_a_message_for_another_recipient_or_context_or_a_changed_one_cannot_be_opened() -> None:
    box, other_recipient = MessageRecipient(make_world()), MessageRecipient(make_world(3))
    letter = seal_message(make_world(2), box.public_key, b"a client's secret", context="people")
    changed = replace(letter, sealed=letter.sealed[:-1] + bytes([letter.sealed[-1] ^ 1]))
    tries: list[tuple[MessageRecipient, SealedMessage, str]] = [
        (other_recipient, letter, "people"),
        (box, letter, "machines"),
        (box, changed, "people"),
        (box, replace(letter, sender=b"short"), "people"),
    ]

    for opener, tried, about in tries:
        with pytest.raises(Refusal, match="cannot open the sealed message"):
            opener.open(tried, context=about)


@in_virtual_time
async def test_an_invalid_public_key_is_refused() -> None:
    with pytest.raises(Refusal, match="expected an X25519 public key of 32 bytes") as caught:
        seal_message(make_world(), b"here", b"a client's secret", context="people")

    assert caught.value.code is RefusalCode.INVALID
