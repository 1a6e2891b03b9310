"""Serves decisions to proxies that forward requests themselves: Envoy's rate limit protocol, and an HTTP check endpoint.

Decisions are made in `wharf.limits.decisions`. Nothing here forwards requests.
"""
