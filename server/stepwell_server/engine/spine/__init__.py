"""The engine room. It knows tasks and kinds, and no primitive by name."""
