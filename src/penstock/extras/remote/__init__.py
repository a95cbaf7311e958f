"""Object stores, web servers and the hub as places; caches in buckets."""
