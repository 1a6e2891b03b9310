"""The connections to nodes that this process holds, and the way to those that others hold."""

from collections.abc import Callable

from wharf.server.node_channels import NodeChannel, no_path
from wharf.server.node_link import NodeLink
from wharf.server.whereabouts import Telling


class HeldChannels:
    def __init__(self) -> None:
        self._links: dict[str, NodeLink] = {}
        self.address_of: Callable[[str], str] = lambda process: process
        """The address of another process of this server; set by the wiring where there are several."""
        self.telling: Telling | None = None
        """Hears of every change; set by the wiring where others may ask."""

    def hold(self, node_id: str, link: NodeLink) -> None:
        """A node has one connection: the newest. Who waits on an older one is told that it broke off."""
        older = self._links.get(node_id)
        self._links[node_id] = link
        if older is not None:
            older.break_off()
        elif self.telling is not None:
            self.telling.hold(node_id)

    def let_go(self, node_id: str, link: NodeLink) -> None:
        link.break_off()
        if self._links.get(node_id) is link:
            del self._links[node_id]
            if self.telling is not None:
                self.telling.let_go(node_id)

    def to(self, node_id: str) -> NodeChannel:
        link = self._links.get(node_id)
        if link is None:
            raise no_path()
        return link
