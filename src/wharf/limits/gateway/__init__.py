"""The gateway: a reverse proxy in front of one HTTP service, which admits, counts and refuses its requests."""

from wharf.limits.gateway.gateway import Gateway

__all__ = ["Gateway"]
