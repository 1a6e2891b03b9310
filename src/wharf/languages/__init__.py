"""Languages that users write: filters, HCL, templates and regular expressions.

These packages parse and evaluate text. They know no jobs, nodes or other records of the cluster.
"""
