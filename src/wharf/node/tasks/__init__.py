"""What a task finds when it starts: its payload, what it has fetched, its rendered files, its secrets.

Responsible for making these, each once, and for keeping rendered files true while the task runs. What follows for the
task, a wait, a restart or a failure, is decided by the core of the node.
"""
