"""Trainers that take a Loader, and the sample kinds that they train on."""
