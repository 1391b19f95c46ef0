"""The edge: listeners, the pipeline around every call, access, admission, limits."""
