"""Rows of hooks and of their targets."""
