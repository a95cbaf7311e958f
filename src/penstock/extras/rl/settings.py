"""Keyword arguments of `penstock.Prompts`, next to those of the order of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import PlanError
from penstock.settings import Declared, check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """What `Prompts` takes."""

    repeats: int = setting(
        "rollouts of each prompt; workers read it from the prompt", 8, whole=True, least=1
    )
    epochs: int | None = setting(
        "how often every prompt is given; None forever", None, choices=(None,), whole=True, least=1
    )
    max_length: int | None = setting(
        "longer prompts are left out and counted; needs a store",
        None,
        choices=(None,),
        whole=True,
        least=1,
    )
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

    def __post_init__(self) -> None:
        check_settings(self)
        if self.lease is not None and not self.lease > 0:
            raise PlanError(
                f"lease is {self.lease!r}, expected more than 0 seconds, or None for leases that do not run out"
            )
        if self.filter is None and (self.filter_version is not None or self.num_proc is not None):
            raise PlanError(
                f"filter_version={self.filter_version!r} and num_proc={self.num_proc!r} belong to a filter; pass filter=, "
                "or leave them out"
            )


SETTINGS = Declared(function="Prompts", settings=PromptSettings)
