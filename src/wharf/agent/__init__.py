"""The agent: starts the processes that the configuration requires, supervises them, and stops them.

The parent process holds the listening socket and the data folder and sends commands to its children. Scheduling and
API rules do not belong here.
"""
