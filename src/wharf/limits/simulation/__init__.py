"""What rules would have done with requests that were logged: who would have been refused, by which rule, and when."""
