"""The node agent: talks to servers, applies events to allocations, and has drivers and task supervisor perform the
actions.
"""
