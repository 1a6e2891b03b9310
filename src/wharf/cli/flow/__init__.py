"""`wharf flow`: flows and their runs, which are jobs with steps."""
