"""Penstock: the pipe between a pile of raw records and a trainer."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api import Loader, concat, load, open, prepare
    from penstock.recipe import Recipe

__version__ = "0.1.0"
__all__ = ["Loader", "Recipe", "concat", "load", "open", "prepare"]


def __getattr__(name: str) -> Any:
    """Public names bring pyarrow and the tokenizers along, so they are imported when first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}; it has {', '.join(__all__)}")
    if name == "Recipe":
        from penstock.recipe import Recipe

        return globals().setdefault(name, Recipe)
    from penstock import api

    return globals().setdefault(name, getattr(api, name))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
