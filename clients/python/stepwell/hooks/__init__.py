"""Hooks: what an author writes, and what a client does with a hook."""
