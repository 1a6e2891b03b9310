"""What each process of the tree does: one module a role, loaded in its own process only.

Each builds its parts from the order it was given, says when it is ready, and waits to be told to stop.
"""
