"""Configurations of other tools as recipes."""
