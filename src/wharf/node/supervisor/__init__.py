"""The node's supervisor: a small process that starts tasks for the agent and survives the agent's restarts.

It starts programs through a shim script (one per run), writes their output to log files and reports how they ended. It
makes no decisions: the agent decides what runs and for how long. The shims also survive the supervisor.
"""
