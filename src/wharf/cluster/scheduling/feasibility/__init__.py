"""Feasibility: whether a node can run a group at all, before scores are computed."""
