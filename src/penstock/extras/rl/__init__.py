"""Prompts for reinforcement learning, and the frameworks that lease them."""
