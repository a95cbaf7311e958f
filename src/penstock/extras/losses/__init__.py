"""Losses of a training by source, sample and position."""
