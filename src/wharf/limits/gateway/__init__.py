"""A reverse proxy in front of one HTTP service, with limits before and after it (docs/adr on its protocols)."""

from wharf.limits.gateway.gateway import Gateway

__all__ = ["Gateway"]
