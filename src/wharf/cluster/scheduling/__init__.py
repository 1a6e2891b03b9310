"""One evaluation: what should differ, which nodes can, which is best; a plan comes out. Pure."""
