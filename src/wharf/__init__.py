"""Wharf: a workload scheduler for clusters, and a rate limiter for HTTP services."""

__version__ = "0.1.0"
