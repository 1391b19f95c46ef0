"""The Stepwell server: durable execution over SQLite or PostgreSQL, spoken to by gRPC."""

__version__ = "0.1.0"
