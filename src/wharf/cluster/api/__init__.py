"""The HTTP API: routing, parameters, access checks, blocking queries, lists, handlers and relays. No domain rules."""
