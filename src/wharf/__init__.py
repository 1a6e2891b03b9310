"""Wharf: runs a team's machines, guards its services, hosts its code."""

__version__ = "0.1.0"
