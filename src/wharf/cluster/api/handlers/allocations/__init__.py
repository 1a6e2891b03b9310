"""Handlers of endpoints about allocations: their records, and requests that their nodes answer."""
