"""Values that every floor speaks: errors, payloads, names, times, limits."""
