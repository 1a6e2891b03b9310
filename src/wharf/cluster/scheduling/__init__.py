"""The scheduler: compares what a job requests with what runs, chooses nodes, and builds a plan for the leader.

It reads snapshots of the replica and writes nothing itself.
"""
