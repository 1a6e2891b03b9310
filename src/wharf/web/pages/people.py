"""Finds the names of tokens that changed something, for pages that show who did it."""

import asyncio
from collections.abc import Iterable
from typing import Final

from wharf.contract.client.errors import RequestRefused
from wharf.web.page import PageRequest
from wharf.web.views.people import ANONYMOUS, Names

LIST_TOKENS: Final = "acl.token.list"
MAX_NAMES: Final = 20
"""How many tokens a page names. Each is one read in this process."""


async def find_names(request: PageRequest, accessor_ids: Iterable[str]) -> Names:
    """Return the names of tokens by their accessor IDs; none for people who may not read all tokens.

    The name of the own token is not shown to them either: people with the same rights share the updates of pages.
    """
    known = (each.rpartition(":")[2] for each in accessor_ids if each and each != ANONYMOUS)
    accessors = list(dict.fromkeys(known))[:MAX_NAMES]
    if not accessors or not request.visitor.is_signed_in:
        return {}

    checked = await request.client.acl.check((LIST_TOKENS,), stale=True)
    if LIST_TOKENS not in checked.value.allowed:
        return {}

    async def read(accessor_id: str) -> str:
        try:
            return (await request.client.acl.tokens.read(accessor_id)).value.name
        except RequestRefused:
            return ""

    names = await asyncio.gather(*map(read, accessors))
    return {accessor_id: name for accessor_id, name in zip(accessors, names, strict=True) if name}
