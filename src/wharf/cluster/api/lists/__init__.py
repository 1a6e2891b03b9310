"""Lists of records: order, pages, and the cache of whole encoded lists."""
