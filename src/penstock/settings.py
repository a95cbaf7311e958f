"""Settings: their names, and the names that they had before."""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, cast

_log = logging.getLogger("penstock")

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Names of settings in 0.2.  Recipes and Python still take them; types and documentation do not show them.
OLD_NAMES: Mapping[str, str] = {
    "anneal": "interpolate",
    "overflow": "on_overlong",
    "pad_id": "pad_token_id",
    "pad_to": "pad_to_multiple_of",
    "place": "path",
    "replicas": "model_parallel_size",
    "shape": "format",
    "skip": "skip_steps",
    "stop": "stopping_strategy",
    "tail": "last_step",
    "template_kwargs": "chat_template_kwargs",
    "window": "shuffle_window",
}
OLD_VALUES: Mapping[str, Mapping[str, str]] = {
    "mix_by": {"rows": "samples"},
    "stopping_strategy": {"first": "first_exhausted", "all": "all_exhausted"},
}


def current_value(name: str, value: Any) -> Any:
    """Return the value that means the same today; `name` is the current name of the setting."""
    old_values = OLD_VALUES.get(name, {})
    return old_values.get(value, value) if isinstance(value, str) else value


def current_names(options: Mapping[str, Any], old_names: Iterable[str]) -> dict[str, Any]:
    """Return keyword arguments under their current names and values; log each old one once per process."""
    current: dict[str, Any] = {}
    for given_name, given_value in options.items():
        name = OLD_NAMES[given_name] if given_name in old_names else given_name
        if name != given_name:
            if name in options:
                raise TypeError(f"{name} is given twice: as {name}= and as {given_name}=; keep one")
            notice_old_name(f"{given_name}=", f"{name}=")
        value = current_value(name, given_value)
        if value is not given_value:
            notice_old_name(f"{name}={given_value!r}", f"{name}={value!r}")
        current[name] = value
    return current


def accepts_old_names(*old_names: str) -> Callable[[_Function], _Function]:
    """Let a function take these names of 0.2 as keyword arguments too."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            return function(*args, **current_names(options, old_names))

        return cast(_Function, call)

    return decorate


OF_LOADER = tuple(name for name in OLD_NAMES if name not in ("place", "shape", "template_kwargs"))


@cache  # so that each is logged once per process
def notice_old_name(old: str, current: str) -> None:
    """Log that a name of 0.2 was used."""
    _log.warning("%s is now written %s; the old name still works", old, current)
