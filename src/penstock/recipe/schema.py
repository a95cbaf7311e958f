"""The JSON schema of a recipe, for editors that complete and check YAML."""

from typing import Any

from penstock.recipe.keys import Key, file_options, keys
from penstock.settings import REQUIRED

_TYPES = {
    "null": "null",
    "true or false": "boolean",
    "a whole number": "integer",
    "a number": "number",
    "text": "string",
    "a mapping": "object",
    "a list": "array",
}
_PLACES = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def recipe_schema() -> dict[str, Any]:
    """Return the schema.  It knows the keys of this installation, those of its plugins too, and no names of other tools."""
    of_all: dict[str, Any] = {}
    of_set: dict[str, Any] = {
        "path": _PLACES | {"description": "files, globs or folders of this dataset"},
        "weight": {
            "type": ["number", "object"],
            "description": "its share of the mixture, or a table of shares over steps or tokens",
        },
        "name": {"type": "string", "description": "what the dataset is called"},
    }
    for name, key in keys().items():
        if key.room == "process":  # never written in a file
            continue
        of_all[name] = _of_key(key)
        if key.room != "prepare":  # an eval set may have its own values of the others
            of_set[name] = _of_key(key)
    data_set = {"type": "object", "properties": of_set, "additionalProperties": False}
    data_sets = {
        "description": "a place, places, a dataset, a list of datasets, or datasets by name",
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"anyOf": [{"type": "string"}, _REFERENCE]}},
            {**_REFERENCE, "required": ["path"]},
            {"type": "object", "additionalProperties": {"anyOf": [*_PLACES["anyOf"], _REFERENCE]}},
        ],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Recipe of Penstock",
        "type": "object",
        "required": ["data"],
        "properties": {"data": data_sets, "eval": data_sets, **of_all},
        "additionalProperties": False,
        "$defs": {"data_set": data_set},
    }


_REFERENCE: dict[str, Any] = {"$ref": "#/$defs/data_set"}


def _of_key(key: Key) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": key.doc}
    if key.name == "options":
        known = file_options().values()
        schema["properties"] = {each.name: {"description": each.doc} for each in known}
    choices = key.setting.choices
    if choices and not key.accepts & {"a whole number", "a number"}:
        schema["enum"] = list(choices)
    elif "anything" not in key.accepts:
        schema["type"] = sorted(_TYPES[kind] for kind in key.accepts)
    if key.default is not REQUIRED and key.default is not ...:
        schema["default"] = key.default
    return schema
