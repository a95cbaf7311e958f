"""Prompts for reinforcement learning: leased to rollout workers, and never lost."""

from penstock.extras.rl.prompts import Prompt, Prompts
from penstock.extras.rl.server import Client, Server, connect, serve

__all__ = ["Client", "Prompt", "Prompts", "Server", "connect", "serve"]
