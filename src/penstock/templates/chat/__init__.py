"""Conversations through a chat template: rendering, loss masks, tokens."""
