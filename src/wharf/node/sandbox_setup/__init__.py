"""Programs that set up the sandbox of a task, or enter it, and then become a program in it.

They run as root in the mount namespace of a task, so they trust nothing in it: no link is followed, no program of it
runs before the task's privileges are in force, and nothing is imported after its root is entered. They import little,
because each start of a task starts Python once.
"""
