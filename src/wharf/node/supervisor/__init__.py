"""The task supervisor: a small process that starts tasks for the node agent and survives the agent's restarts.

It starts programs through a shim script (one per run), writes their output to log files and reports how they ended. A
run is one start of a task. The supervisor decides nothing: the agent decides what runs and for how long. The shims also
survive the supervisor.
"""
