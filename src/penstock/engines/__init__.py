"""Run these tasks."""

from penstock.engines.local import LocalEngine

__all__ = ["LocalEngine"]
