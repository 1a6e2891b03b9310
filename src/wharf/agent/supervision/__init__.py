"""Supervision of the processes of an agent: which run, messages to and from them, and the control socket."""
