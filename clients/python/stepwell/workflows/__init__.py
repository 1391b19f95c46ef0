"""Workflows: what an author writes, and what a client does with an instance."""
