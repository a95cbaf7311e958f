"""Prepare on a Ray cluster, and prompts owned by a Ray actor."""
