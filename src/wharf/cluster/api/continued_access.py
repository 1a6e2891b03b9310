"""Continued access: ends streams and websockets whose caller has lost access, or whose allocation is gone.

A blocking query is not covered here, because it checks its caller's rights before every reply.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from wharf.cluster.api.access_control import RequestAuthorizer
from wharf.cluster.api.requests.request import Request
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS, ALLOCATIONS, NAMESPACES
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.refusal import Refusal, not_found
from wharf.world.tasks import wait_for_event

CHECK_INTERVAL_S: Final = 10.0
"""How often the access of an open stream or websocket is checked. A token may expire without any change of the state."""
MIN_CHECK_INTERVAL_S: Final = 1.0
"""The shortest time between two checks. Limits the work for many open streams while tokens are created all the time."""
ALLOCATION_PARAMETER: Final = "alloc_id"
ACCESS_TARGETS: Final = tuple(watch_table(table) for table in (ACL_TOKENS, ACL_POLICIES, ACL_ROLES))


class AccessWatcher:
    """Waits until the caller of an open stream or websocket has lost access. Costs nothing while none is open."""

    def __init__(self, server: Server, authorizer: RequestAuthorizer) -> None:
        self._server = server
        self._authorizer = authorizer

    async def wait_until_lost(self, request: Request, check: Callable[[], None] = lambda: None) -> Refusal:
        """Return why the request is no longer permitted, once it is not.

        The rights of its caller and the allocation in its path are checked when a token, policy or role changes, and every
        `CHECK_INTERVAL_S`. `check` is called too, and raises `Refusal`.
        """
        is_changed = asyncio.Event()
        subscription = self._server.replica.watches.subscribe(ACCESS_TARGETS, is_changed.set)
        try:
            while True:
                is_changed.clear()
                subscription.rearm()
                await self._authorizer.check_again(request)
                self._check_allocation(request)
                check()
                await asyncio.sleep(MIN_CHECK_INTERVAL_S)
                await wait_for_event(is_changed, CHECK_INTERVAL_S - MIN_CHECK_INTERVAL_S)
        except Refusal as refusal:
            return refusal
        finally:
            subscription.close()

    def _check_allocation(self, request: Request) -> None:
        """Raise a `Refusal` if the allocation in the path of the request, or its namespace, no longer exists."""
        allocation_id = request.path_values.get(ALLOCATION_PARAMETER)
        if allocation_id is None:
            return
        allocation = self._server.replica.get(ALLOCATIONS, allocation_id)
        if allocation is None:
            raise not_found(f"allocation {allocation_id} no longer exists")
        if self._server.replica.get(NAMESPACES, allocation.namespace) is None:
            raise not_found(f'namespace "{allocation.namespace}" no longer exists')
