"""The database itself: connections, transactions, dialects, clock, hints."""
