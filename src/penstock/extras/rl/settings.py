"""Keyword arguments of `penstock.Prompts`, next to those of the order of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.settings import Declared, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """What `Prompts` takes."""

    repeats: int = setting("rollouts of each prompt; workers read it from the prompt", 8)
    epochs: int | None = setting("how often every prompt is given; None: forever", None)
    max_length: int | None = setting("longer prompts are left out and counted", None)
    lease: float | None = setting(
        "seconds after which a prompt that was taken and not acknowledged is given again; None for never",
        None,
    )
    part: str = setting("for a recipe: train, or the name of an eval set", "train")
    filter: Callable[..., Any] | None = setting(
        "a function over records; those for which it returns false are left out and counted", None
    )
    filter_version: str | int | None = setting(
        "have the answers of the filter remembered; raise it when something changes that the function uses",
        None,
    )
    num_proc: int | None = setting("processes that call the filter; else all cores", None)


SETTINGS = Declared(function="Prompts", settings=PromptSettings)
