"""A typed client of the HTTP API, over whatever carries a request: a socket, or a call in memory."""

from wharf.client.client import Answer, Client
from wharf.client.exchange import Exchange, Reply, Unreachable

__all__ = ["Answer", "Client", "Exchange", "Reply", "Unreachable"]
