"""The leader's controllers: what must happen next, and when.

They are pure: state, time and events come in, decisions and deadlines go out. `server.leader` runs them.
"""
