"""The decisions of a node as pure functions: record, event and time in, new record and actions out.

Nothing here waits, reads a clock or knows a process, so the node agent and the simulation drive the same code.
"""
