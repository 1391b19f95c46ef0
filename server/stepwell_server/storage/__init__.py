"""Every SQL statement of the product, and the clock. A repository is a module of functions: transaction in,
domain objects out."""
