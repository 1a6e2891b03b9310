"""The keeper of a node's programs: a small process that outlives the agent, and the shims that outlive it too.

It starts programs, keeps their output and tells how they ended. It decides nothing: what runs, and for how long, the
agent says.
"""
