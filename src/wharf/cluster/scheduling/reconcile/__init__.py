"""Reconciliation: compares what a job requests with its allocations.

The result is stops, placements, updates and follow-ups.
It sees a node only as deleted, down, disconnected, draining or healthy. The only check of
resources is whether an allocation can be updated in place. It chooses no nodes.
"""
