"""Numbers, for people."""
