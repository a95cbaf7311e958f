"""Prompts of a Ray actor: one actor owns them, and rollout workers lease from it."""

from penstock.extras.ray.prompts import RayClient, connect, start_owner

__all__ = ["RayClient", "connect", "start_owner"]
