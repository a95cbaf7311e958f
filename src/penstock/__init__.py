"""Penstock turns raw records into training batches."""

from sys import platform as _platform
from typing import TYPE_CHECKING, Any

if _platform == "win32":
    raise ImportError(
        "Penstock needs Linux or macOS, and this is Windows: install and run it in WSL (wsl --install), where it works as on Linux"
    )

if TYPE_CHECKING:
    from penstock.api import concat, interleave, open, prepare
    from penstock.extras.rl.prompts import Prompts
    from penstock.loader import Loader
    from penstock.recipe import Recipe
    from penstock.recipe.run import load

__version__ = "0.2.0"
_ROOMS = {
    "Loader": "penstock.loader",
    "Prompts": "penstock.extras.rl.prompts",
    "Recipe": "penstock.recipe",
    "concat": "penstock.api",
    "interleave": "penstock.api",
    "load": "penstock.recipe.run",
    "open": "penstock.api",
    "prepare": "penstock.api",
}
__all__ = ["Loader", "Prompts", "Recipe", "concat", "interleave", "load", "open", "prepare"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, with only the packages that it needs."""
    if name not in _ROOMS:
        raise AttributeError(
            f"module 'penstock' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    from importlib import import_module

    if name == "Prompts":
        _require_extra("rl", "penstock.Prompts")
    return globals().setdefault(name, getattr(import_module(_ROOMS[name]), name))


def _require_extra(extra: str, what: str) -> None:
    """Raise PluginError if an extra's folder is not installed."""
    from penstock.plugins import is_installed

    if not is_installed(extra):
        from penstock.errors import PluginError

        raise PluginError(
            f"{what} belongs to the extra penstock.extras.{extra}, which this installation does not have; install the whole package"
        )


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
