"""Objectives: what a sample becomes on its way into a row.  The page beside this file says more."""
