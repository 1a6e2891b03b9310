"""Limits on placements beyond the resources of nodes: quotas, child limits, fair shares and reservations."""
