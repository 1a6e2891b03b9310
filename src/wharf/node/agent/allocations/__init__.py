"""The allocations of this node: their journal, the manager that applies events to them, and the hooks around their
tasks.
"""
