"""Background loops, one file each. A loop that fails is logged and goes on; it never dies silently."""
