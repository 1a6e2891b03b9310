"""Lists of records: order, pages, filters, encoding, and the cache of whole encoded lists."""
