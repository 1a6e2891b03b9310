"""Host volumes that jobs may request: those in the node's configuration, and those that servers create on the node.

Plugins create and delete the folders. Servers decide which jobs may use a volume.
"""
