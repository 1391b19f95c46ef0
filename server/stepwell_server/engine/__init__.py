"""Use cases. Each public method is one transaction: load, decide in the domain, save."""
