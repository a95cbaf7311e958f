"""Objectives: what a sample becomes on its way into a row.  The page next to this file says more."""
