"""The shell: follows the log, passes decisions to it, runs what the brain decides, talks to other servers and nodes.

It holds no rules of the domain; those are in `operations`, `controllers` and `scheduling`, which never wait.
"""
