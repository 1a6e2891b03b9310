"""Requests that are forwarded to another member: what the caller gets if the reply is lost."""

from contextlib import AbstractAsyncContextManager

import pytest

from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.server.relay import RequestRelay
from wharf.contract.client.relay.port import RelayReply, RelayRequest
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import RealWorld


class FailingRelay:
    """A connection on which each request fails, after it was sent or before."""

    def __init__(self, *, is_sent: bool) -> None:
        self._is_sent = is_sent

    def open(self, request: RelayRequest) -> AbstractAsyncContextManager[RelayReply]:
        raise Unreachable(f"no reply to {request.method}", is_sent=self._is_sent)

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize(
    ("method", "is_sent", "code"),
    [
        ("PUT", True, RefusalCode.OUTCOME_UNKNOWN),
        ("PUT", False, RefusalCode.UNAVAILABLE),
        ("GET", True, RefusalCode.UNAVAILABLE),
    ],
)
@in_virtual_time
async def test_only_a_write_that_was_sent_and_got_no_reply_has_an_unknown_outcome(
    method: str, is_sent: bool, code: RefusalCode
) -> None:
    relay = RequestRelay(RealWorld(), lambda _: FailingRelay(is_sent=is_sent))

    with pytest.raises(Refusal) as caught:
        await relay.send_to_member("10.0.0.1:4646", RelayRequest(method, b"/v1/jobs", []))

    assert caught.value.code is code
