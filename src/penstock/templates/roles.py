"""Who speaks, and is it trained?  The names that data gives to roles, and what a message says about its own loss."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.keys import kind

CALL = "assistant: tool_call"  # an assistant that calls a tool, the call being the content; no role in any data

# Roles that chat templates know by themselves; they are handed on.
_KNOWN = (
    *("user", "assistant", "system", "tool", "developer", "ipython", "environment", "context", "control"),
    *("document", "documents", "available_tools"),
)
_ALIASES = {
    "user": ("human", "prompter"),
    "assistant": ("gpt", "chatgpt", "bot", "bing", "bard", "model", "ai"),
    "tool": (
        *("observation", "observations", "function_response", "function_result", "function"),
        *("tool_response", "tool_result", "tool_results"),
    ),
    CALL: ("function_call", "function_calls", "tool_call", "tool_calls"),
}


def role_names(given: Mapping[str, str | Sequence[str]] | None) -> dict[str, str]:
    """Name in the data → role.  `given` adds to the built-in names: {alias: role} or {role: [aliases]}."""
    names = {role: role for role in _KNOWN}
    names |= {alias: role for role, aliases in _ALIASES.items() for alias in aliases}
    for key, value in (given or {}).items():
        if isinstance(value, str):
            names[key] = CALL if value in _ALIASES[CALL] else value
        elif isinstance(value, Sequence) and all(isinstance(alias, str) for alias in value):
            names |= dict.fromkeys(value, CALL if key in _ALIASES[CALL] else key)
        else:
            raise TemplateError(
                f"role_map[{key!r}] is {value!r}, expected a role, or a list of names for the role {key!r}"
            )
    return names


def find_role(name: Any, names: Mapping[str, str], what: str) -> str:
    """The role that a name stands for, whatever its case; an unknown one is an error, since nobody would train it."""
    if isinstance(name, str):
        found = names.get(name) or names.get(name.strip().lower())
        if found is not None:
            return found
        raise TemplateError(
            f"{what} has the role {name!r}, which is not known; pass role_map={{{name!r}: 'user'}} (or another role, "
            f"or {name!r} itself if the chat template knows it)"
        )
    raise TemplateError(f"{what} has a role that is {kind(name)}, expected a string")


def check_roles(given: Any, names: Mapping[str, str]) -> list[str]:
    """A list of roles to train; one that no message can have is an error.  No names: any role may come."""
    if not isinstance(given, list | tuple) or not all(isinstance(role, str) for role in given):
        raise TemplateError(f"train_on={given!r} is not known, expected a word or a list of roles")
    for role in given:
        if names and role not in names.values():
            meant = f"is read as {names[role]!r}: name that one" if role in names else "is no role: role_map= adds one"
            raise TemplateError(f"train_on names {role!r}, which {meant}")
    return list(given)


_FLAGS = ("train", "training", "loss", "weight", "loss_weight", "loss_scale", "masked")
_ANY_FLAG = frozenset(_FLAGS)


def train_flag(message: Mapping[str, Any]) -> bool | None:
    """What a message says of itself: trained, not trained, or (None) nothing."""
    if _ANY_FLAG.isdisjoint(message):
        return None
    found: dict[str, bool] = {}
    for key in _FLAGS:
        value = message.get(key)
        if value is None:
            continue
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise TemplateError(
                f"a message's {key!r} is {value!r}, expected true, false, 0 or 1 (a loss mask knows no weights between)"
            )
        found[key] = bool(value) != (key == "masked")
    if len(set(found.values())) > 1:
        raise TemplateError(f"a message's fields contradict each other about its loss: {found} (True: trained)")
    return next(iter(found.values()), None)
