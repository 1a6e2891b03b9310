"""Task drivers: each adapter runs tasks in one way, behind the protocol in `port`.

They decide nothing about allocations.
"""
