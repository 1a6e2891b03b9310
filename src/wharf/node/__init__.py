"""One machine of the cluster: the node agent, its drivers and the task supervisor. It never uses server state or log
engines.
"""
