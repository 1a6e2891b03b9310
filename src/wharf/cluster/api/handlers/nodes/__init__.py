"""Handlers of endpoints about nodes: their records, and requests that nodes themselves send."""
