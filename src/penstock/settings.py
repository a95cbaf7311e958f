"""Settings: declared once, and from there documented, checked and named.

A setting is a field of a frozen dataclass, made with `setting(doc, default)`, in the room that uses it; those of an extra are registered
in the plugin group "settings" as `Declared`.  Keys of recipes, options of commands, `help()`, the reference, the JSON schema and
the types of keyword arguments are made from these fields.

    python -m penstock.settings        writes penstock/options.py: the keyword arguments of public functions, for type checkers
"""

import functools
import inspect
import logging
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, cast

import numpy as np

from penstock.errors import PlanError

_log = logging.getLogger("penstock")

_Function = TypeVar("_Function", bound=Callable[..., Any])

REQUIRED = inspect.Parameter.empty

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
OF_LOADER = tuple(name for name in OLD_NAMES if name not in ("place", "shape", "template_kwargs"))

# Kinds of plain values, as errors and the reference name them; the first that fits counts.
_KINDS: Mapping[str, Any] = {
    "null": type(None),
    "true or false": bool,
    "a whole number": Integral,
    "a number": Real,
    "text": (str, os.PathLike),
    "a mapping": Mapping,
    "a list": Iterable,
    "anything": object,
}


# Declaring


def setting(
    doc: str,
    default: Any = MISSING,
    *,
    choices: tuple[Any, ...] = (),
    whole: bool = False,
    least: int | None = None,
) -> Any:
    """A documented dataclass field that takes one of `choices`, or with `whole` also a whole number of at least `least`."""
    return field(
        default=default, metadata={"doc": doc, "choices": choices, "whole": whole, "least": least}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is declared about one setting."""

    name: str
    type: Any
    default: Any = REQUIRED
    doc: str = ""
    choices: tuple[Any, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of plain values that it accepts."""
        return frozenset(_kinds(self.type))


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Settings of an extra or of another package: `function` takes the fields of `settings` as keyword arguments."""

    function: Literal["open", "Prompts"]
    settings: type


def declared(owner: Callable[..., Any]) -> dict[str, Setting]:
    """Return the settings that a dataclass declares with `setting`, or a signature with `Annotated`, by name."""
    metadata: dict[str, Mapping[str, Any]] = {}
    if is_dataclass(owner):
        metadata = {each.name: each.metadata for each in fields(owner)}
    found = {}
    for name, parameter in inspect.signature(owner).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or name == "self" or name.startswith("_"):
            continue
        annotation = parameter.annotation
        doc = metadata.get(name, {}).get("doc", "")
        if typing.get_origin(annotation) is Annotated:
            annotation, doc = typing.get_args(annotation)
        found[name] = Setting(
            name=name,
            type=annotation,
            default=parameter.default,
            doc=doc,
            choices=metadata.get(name, {}).get("choices", ()),
        )
    return found


def _kinds(annotation: Any) -> set[str]:
    """Return the kinds of plain values that a type accepts."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return {kind for part in typing.get_args(annotation) for kind in _kinds(part)}
    if origin is Literal:
        return {"text"}
    of_values = type(None) if annotation is None else origin or annotation
    for name, known in _KINDS.items():
        if isinstance(of_values, type) and issubclass(of_values, known):
            return {name}
    return {"anything"}


def kind_of(value: Any) -> str:
    """Return the kind of a plain value, as errors name it."""
    return next(kind for kind, known in _KINDS.items() if isinstance(value, known))


# Checking


def check_settings(settings: Any) -> None:
    """Check every field against what `setting` says of it; numbers of numpy become plain ints."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        choices = each.metadata["choices"]
        if _is_choice(value, choices):
            continue
        if each.metadata["whole"]:
            words = [choice for choice in choices if choice is not None]
            number = whole_number(each.name, value, least=each.metadata["least"], other=words)
            object.__setattr__(settings, each.name, number)
        elif choices:
            expected = ", ".join(map(str, choices))
            raise PlanError(f"{each.name} is {value!r}, expected one of {expected}")


def _is_choice(value: Any, choices: Iterable[Any]) -> bool:
    return any(value is choice or (type(value) is str and value == choice) for choice in choices)


def whole_number(name: str, value: Any, *, least: int | None, other: Iterable[str] = ()) -> int:
    """Return `value` as a plain int, also from numpy; refuse bools and 2.0.  `other`: words that the error also offers."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _not_whole(name, value, least, other) from None
    if isinstance(value, bool | np.bool_) or (least is not None and number < least):
        raise _not_whole(name, value, least, other)
    return number


def _not_whole(name: str, value: Any, least: int | None, other: Iterable[str]) -> PlanError:
    bound = "" if least is None else f" ≥ {least}"
    expected = " or ".join([f"a whole number{bound}", *other])
    return PlanError(f"{name} is {value!r}, expected {expected}")


# Old names


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


@cache  # so that each is logged once per process
def notice_old_name(old: str, current: str) -> None:
    """Log that a name of 0.2 was used."""
    _log.warning("%s is now written %s; the old name still works", old, current)


# Public functions


def takes(options: str, *, old_names: Iterable[str] = ()) -> Callable[[_Function], _Function]:
    """Show the keyword arguments of a public function in `help()` and notebooks, and let it take names of 0.2.

    options: the name of their TypedDict in penstock/options.py.  The function itself takes `**options: Unpack[…]` of it, for type
    checkers and editors.
    """
    from penstock import options as written

    keywords = getattr(written, options)
    defaults = written.DEFAULTS[options]

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **current_names(given, tuple(old_names)))

        own = inspect.signature(function)
        parameters = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        for name, reference in keywords.__annotations__.items():
            words = reference.__forward_arg__
            if words.startswith("Required["):
                words = words.removeprefix("Required[").removesuffix("]")
            parameters.append(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=defaults.get(name, REQUIRED),
                    annotation=words,
                )
            )
        call.__dict__["__signature__"] = own.replace(parameters=parameters)
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{keywords.__doc__}"
        return cast(_Function, call)

    return decorate


def taken(options: dict[str, Any], owner: type) -> dict[str, Any]:
    """Remove from `options` those that a dataclass of settings declares, and return them."""
    return {each.name: options.pop(each.name) for each in fields(owner) if each.name in options}


def with_plugin_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with those of `plugin_options={name: {…}}`, for settings of third parties, beside the others."""
    of_plugins = options.pop("plugin_options", None) or {}
    for plugin, its_options in of_plugins.items():
        twice = options.keys() & its_options.keys()
        if twice:
            raise TypeError(
                f"{min(twice)} is given twice: by itself and in plugin_options of {plugin!r}; keep one"
            )
        options |= its_options
    return options


if __name__ == "__main__":
    from importlib import import_module

    import_module("penstock.recipe.options_file").write()
