"""The roles of processes: one module each, imported only in its own process.

A role builds its components from the process order, reports when it is ready, and runs until it is asked to stop.
"""
