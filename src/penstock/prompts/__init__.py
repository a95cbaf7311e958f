"""Prompts for reinforcement learning: leased to rollout workers, and never lost."""

from penstock.prompts.prompts import Prompt, Prompts
from penstock.prompts.server import Client, Server, connect, serve

__all__ = ["Client", "Prompt", "Prompts", "Server", "connect", "serve"]
