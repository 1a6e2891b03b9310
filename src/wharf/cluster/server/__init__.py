"""The running server: follows the log, commits decisions, runs the leader's duties and talks to servers and nodes.

The rules of the domain are in `operations`, `controllers` and `scheduling`, which do no I/O.
"""
