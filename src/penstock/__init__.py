"""Penstock: the pipe between a pile of raw records and a trainer."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api import Loader, concat, load, open, prepare
    from penstock.recipe import Recipe

__version__ = "0.1.0"
__all__ = ["Loader", "Recipe", "concat", "load", "open", "prepare"]


def __getattr__(name: str) -> Any:
    """A public name is imported when it is first asked for, with the rooms that it needs and no others."""
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    room = import_module("penstock.recipe" if name == "Recipe" else "penstock.api")
    return globals().setdefault(name, getattr(room, name))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
