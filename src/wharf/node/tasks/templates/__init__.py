"""The templates of tasks: rendering, change detection and the cluster data that they query."""
