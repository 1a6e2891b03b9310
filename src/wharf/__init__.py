"""Wharf: runs a team's machines, guards its services, hosts its code."""
