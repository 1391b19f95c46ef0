"""Dispatchers: make passes when something is due, outside of any request."""
