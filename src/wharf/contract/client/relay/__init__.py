"""Relays: forwarding requests, websockets and raw connections unchanged to another server."""
