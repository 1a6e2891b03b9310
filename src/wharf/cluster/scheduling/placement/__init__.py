"""Placement: turns placement requests into allocations on nodes, with preemption and the order of groups."""
