"""The wire: messages to domain values and back."""
