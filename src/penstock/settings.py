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
from penstock.words import shortened

_log = logging.getLogger("penstock")

_Function = TypeVar("_Function", bound=Callable[..., Any])

REQUIRED = inspect.Parameter.empty

# Kinds of plain values, as errors and the reference name them; the first that fits counts.
_KINDS: Mapping[str, Any] = {
    "null": type(None),
    "true or false": bool,
    "a whole number": Integral,
    "a number": Real,
    "text": (str, os.PathLike),
    "a mapping": Mapping,
    "a list": Iterable,
    "a function": Callable,
    "anything": object,
}
_MOST_SHOWN = 60  # characters of a value in an error


# Declaring


def setting(
    doc: str,
    default: Any = MISSING,
    *,
    choices: tuple[Any, ...] = (),
    whole: bool = False,
    least: int | None = None,
    former: str | None = None,
    former_values: Mapping[str, str] = types.MappingProxyType({}),
) -> Any:
    """Declare a setting: a documented dataclass field.

    choices: the values it takes; with `whole` also a whole number of at least `least`.
    former: its name in 0.2; former_values: values of 0.2 → what they are called now.  Recipes and Python still take these; types and
    documentation do not show them.
    """
    metadata = {
        "doc": doc,
        "choices": choices,
        "whole": whole,
        "least": least,
        "former": former,
        "former_values": former_values,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is declared about one setting."""

    name: str
    type: Any
    default: Any = REQUIRED
    doc: str = ""
    choices: tuple[Any, ...] = ()
    whole: bool = False
    least: int | None = None
    former: str | None = None
    former_values: Mapping[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of plain values that it accepts."""
        return frozenset(_kinds(self.type))

    def current_value(self, value: Any) -> Any:
        """Return the value that means the same today."""
        return self.former_values.get(value, value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Settings of an extra or of another package: `function` takes the fields of `settings` as keyword arguments."""

    function: Literal["open", "Loader", "Prompts"]
    settings: type


@cache
def declared(owner: Callable[..., Any]) -> Mapping[str, Setting]:
    """Return the settings that a dataclass declares with `setting`, or a signature with `Annotated`, by name."""
    declarations: dict[str, Mapping[str, Any]] = {}
    if is_dataclass(owner):
        declarations = {each.name: each.metadata for each in fields(owner)}
    settings = {}
    for name, parameter in inspect.signature(owner).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or name == "self" or name.startswith("_"):
            continue
        annotation = parameter.annotation
        declaration = dict(declarations.get(name, {}))
        if typing.get_origin(annotation) is Annotated:
            annotation, declaration["doc"] = typing.get_args(annotation)
        settings[name] = Setting(
            name=name, type=annotation, default=parameter.default, **declaration
        )
    return types.MappingProxyType(settings)


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


def check_settings(settings: Any, error: type[ValueError] = PlanError) -> None:
    """Raise `error` for the first value that its declaration does not allow; whole numbers of numpy become plain ints."""
    for name, declaration in declared(cast(Callable[..., Any], type(settings))).items():
        value = getattr(settings, name)
        if declaration.whole and _as_whole(value) is not None:
            object.__setattr__(settings, name, _as_whole(value))
        if (why := problem(declaration, value)) is not None:
            raise error(why)


def problem(declaration: Setting, value: Any, *, kinds: frozenset[str] | None = None) -> str | None:
    """Return why a setting cannot have a value, or None if it can.  kinds: accept only these, where a file can say less than Python."""
    if _is_choice(value, declaration.choices):
        return None
    accepted = declaration.kinds if kinds is None else kinds
    words = [str(choice) for choice in declaration.choices if choice is not None]
    if declaration.whole:
        number = _as_whole(value)
        if number is not None and (declaration.least is None or number >= declaration.least):
            return None
        expected = " or ".join([_whole_words(declaration.least), *words])
    elif not _is_of_kind(value, accepted):
        expected = f"one of {', '.join(words)}" if words else _kind_words(accepted)
    elif declaration.choices:
        expected = f"one of {', '.join(words)}"
    else:
        return None
    hint = _hint(accepted, value, is_free=not declaration.choices)
    return f"{declaration.name} is {shown(value)}, expected {expected}{hint}"


def shown(value: Any) -> str:
    """A value in an error."""
    return shortened(repr(value), _MOST_SHOWN)


def _is_of_kind(value: Any, accepted: frozenset[str]) -> bool:
    kind = kind_of(value)
    if kind in accepted or "anything" in accepted:
        return True
    if kind == "a whole number" and "a number" in accepted:
        return True
    return "a function" in accepted and callable(value)


def _kind_words(accepted: frozenset[str]) -> str:
    return " or ".join(sorted(accepted - {"null"}) or ["null"])


def _hint(accepted: frozenset[str], value: Any, *, is_free: bool) -> str:
    """What to write instead, where that is clear.  is_free: the text may be any, so that a number in quotes may be meant."""
    if "a whole number" in accepted:
        if isinstance(value, float) and value.is_integer():
            return f"; write {int(value)}"
        digits = value.replace(",", "").replace("_", "").strip() if isinstance(value, str) else ""
        if digits.isdecimal():
            return f"; write {int(digits)}"
    if is_free and accepted <= {"text", "null"} and isinstance(value, int | float):
        return f"; put it in quotes: '{str(value).lower()}'"
    return ""


def _is_choice(value: Any, choices: Iterable[Any]) -> bool:
    return any(value is choice or (type(value) is str and value == choice) for choice in choices)


def _as_whole(value: Any) -> int | None:
    """Return a plain int, also from numpy; None for bools, 2.0 and everything else."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _whole_words(least: int | None) -> str:
    return "a whole number" if least is None else f"a whole number ≥ {least}"


def whole_number(name: str, value: Any, *, least: int | None) -> int:
    """Return an argument as a plain int, also from numpy; refuse bools and 2.0."""
    number = _as_whole(value)
    if number is None or (least is not None and number < least):
        raise PlanError(f"{name} is {value!r}, expected {_whole_words(least)}")
    return number


# Former names


def current_names(
    options: Mapping[str, Any],
    former_names: Mapping[str, str],
    former_values: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """Return keyword arguments under their current names and values; log each former one once per process."""
    current: dict[str, Any] = {}
    for given_name, given_value in options.items():
        name = former_names.get(given_name, given_name)
        if name != given_name and name in options:
            raise TypeError(f"{name} is given twice: as {name}= and as {given_name}=; keep one")
        value = given_value
        if isinstance(given_value, str):
            value = former_values.get(name, {}).get(given_value, given_value)
        if value is not given_value:
            notice_former_name(f"{given_name}={given_value!r}", f"{name}={value!r}")
        elif name != given_name:
            notice_former_name(f"{given_name}=", f"{name}=")
        current[name] = value
    return current


def notice_former_name(former: str, current: str) -> None:
    """Log that a name of 0.2 was used, once per process."""
    notice_once(f"{former} is now written {current}; the old name still works")


@cache
def notice_once(text: str) -> None:
    """Log a warning about a name, once per process."""
    _log.warning("%s", text)


# Public functions


def takes(
    options: str, *, former_parameters: Mapping[str, str] = types.MappingProxyType({})
) -> Callable[[_Function], _Function]:
    """Show the keyword arguments of a public function in `help()` and notebooks, and let it take names of 0.2.

    options: the name of their TypedDict in penstock/options.py.  The function itself takes `**options: Unpack[…]` of it, for type
    checkers and editors.
    former_parameters: names of 0.2 of its other parameters → what they are called now.
    """
    from penstock import options as written

    keywords = getattr(written, options)
    defaults = written.DEFAULTS[options]
    former_names = {**written.FORMER_NAMES.get(options, {}), **former_parameters}
    former_values = written.FORMER_VALUES.get(options, {})

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **current_names(given, former_names, former_values))

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
    """Return options together with those of `plugin_options={name: {…}}`, the settings of third parties."""
    of_plugins = options.pop("plugin_options", None) or {}
    is_by_plugin = isinstance(of_plugins, Mapping) and all(
        isinstance(its_options, Mapping) for its_options in of_plugins.values()
    )
    if not is_by_plugin:
        raise TypeError(
            f"plugin_options is {shown(of_plugins)}, expected the options of each plugin by its name, such as "
            "plugin_options={'my_plugin': {'depth': 2}}"
        )
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
