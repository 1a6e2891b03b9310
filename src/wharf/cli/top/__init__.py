"""`wharf top`: the use of the cluster, live on a terminal."""
