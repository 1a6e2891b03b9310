"""Letters between regions: opened by the box that they were sealed for, for what they are about, and by nothing else."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.server.security.sealed_messages import MessageRecipient, SealedMessage, seal_message
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import SimulatedWorld


def a_world(seed: int = 1) -> SimulatedWorld:
    return SimulatedWorld(seed, asyncio.get_running_loop().time)


@in_virtual_time
async def test_a_letter_is_read_by_whoever_it_is_for_and_shows_nothing_on_the_way() -> None:
    box = MessageRecipient(a_world())

    letter = seal_message(a_world(2), box.public_key, b"a client's secret", context="people")

    assert box.open(letter, context="people") == b"a client's secret"
    assert b"secret" not in letter.sealed


@in_virtual_time
async def test_a_letter_for_somebody_else_about_something_else_or_changed_cannot_be_opened() -> None:
    box, other = MessageRecipient(a_world()), MessageRecipient(a_world(3))
    letter = seal_message(a_world(2), box.public_key, b"a client's secret", context="people")
    changed = replace(letter, sealed=letter.sealed[:-1] + bytes([letter.sealed[-1] ^ 1]))
    tries: list[tuple[MessageRecipient, SealedMessage, str]] = [
        (other, letter, "people"),
        (box, letter, "machines"),
        (box, changed, "people"),
        (box, replace(letter, sender=b"short"), "people"),
    ]

    for opener, tried, about in tries:
        with pytest.raises(Refusal, match="cannot open the sealed message"):
            opener.open(tried, context=about)


@in_virtual_time
async def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(Refusal, match="expected an X25519 public key of 32 bytes") as refused:
        seal_message(a_world(), b"here", b"a client's secret", context="people")

    assert refused.value.code is RefusalCode.INVALID
