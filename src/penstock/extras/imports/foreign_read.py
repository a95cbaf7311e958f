"""Read the settings that another tool's file holds: YAML, a command line in a shell script, or calls in a Python script.

Nothing of a script is run.  What it computes is kept as the text of the expression.
"""

import ast
import json
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import RecipeError
from penstock.recipe.document import read_document
from penstock.sources.yaml_lines import read_yaml

CONFIG = "config"  # the key of a command line that names a YAML file
LOAD_DATASET = "load_dataset"  # the calls of a Python script
SPLIT_SIZE = "test_split_size"  # of trl, and what train_test_split(test_size=…) of a script becomes

# Trainers of trl, and older ones whose data is the same.
METHODS = ("sft", "dpo", "kto", "grpo", "rloo", "reward", "orpo", "cpo", "bco")
_CONFIG_CLASS = re.compile(rf"({'|'.join(METHODS)})config", re.IGNORECASE)
_TRAINER_CLASS = re.compile(rf"({'|'.join(METHODS)})trainer", re.IGNORECASE)
_OTHER_CLASSES = ("ScriptArguments", "ModelConfig", "TrainingArguments")
# `trl dpo`, `-m trl.scripts.dpo`, `examples/scripts/dpo.py`, `dpo_vlm.py`
_METHOD_WORD = re.compile(rf"(?:.*[/.])?({'|'.join(METHODS)})(?:_\w+)?(?:\.py)?")
# Functions of `datasets` that change or choose records.
_CHANGES_RECORDS = """map filter select shuffle take skip sort shard flatten cast cast_column class_encode_column rename_column
  rename_columns remove_columns select_columns add_column concatenate_datasets interleave_datasets"""

_LAUNCHERS = ("accelerate", "torchrun", "deepspeed", "srun", "ray", "uv", "nohup", "time")
_PROGRAMS = ("trl", "axolotl", "llamafactory-cli", "llamafactory")
_DISTRIBUTED = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_MODULE = "-m"  # of Python
_NEXT_COMMAND = {"--", "|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1"}


class Computed(str):
    """An expression of a script whose value is known only when it runs."""

    __slots__ = ()


@dataclass
class Foreign:
    """Settings of another tool."""

    keys: dict[str, Any] = field(default_factory=dict)
    method: str | None = None  # how trl trains: sft, dpo …
    remarks: list[str] = field(default_factory=list)  # what a script does that no key says

    def add(self, key: str, value: Any, path: Path) -> None:
        """Add a key, which must be there once."""
        if key in self.keys:
            raise RecipeError(
                f"{path}: {key} is there twice; keep the command or the call that trains, and remove the other"
            )
        self.keys[key] = value

    def found_method(self, method: str, path: Path) -> None:
        """Note how the script trains; two ways in one file cannot be told apart."""
        if self.method not in (None, method):
            raise RecipeError(
                f"{path}: trains by {self.method} and by {method}; keep the command or the call that trains, and remove the other"
            )
        self.method = method


def read_foreign(path: Path) -> Foreign:
    """Return the settings in a YAML file, in the arguments of a shell script, or in the calls of a Python script."""
    if path.suffix.lower() in (".yaml", ".yml"):
        return Foreign(_of_yaml(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{path}: cannot be read: {error}; give a YAML file, a shell script or a Python script"
        ) from error
    found = _of_python(text, path) if path.suffix == ".py" else _of_arguments(text, path)
    if not found.keys:
        classes = ", ".join(f"{method.upper()}Config" for method in ("sft", "dpo", "kto", "grpo"))
        raise RecipeError(
            f"{path}: no settings found, expected a YAML file, a command line with --arguments, or a call of {classes}, "
            f"{', '.join(_OTHER_CLASSES)}"
        )
    return found


# YAML


def _of_yaml(path: Path) -> dict[str, Any]:
    """Return the keys of a YAML file; those of LMMS-Engine without its blocks."""
    lmms = _of_lmms_list(path)
    keys = read_document(str(path))[0] if lmms is None else lmms
    if not isinstance(keys.get("dataset_config"), dict):
        return keys
    data = dict(keys.pop("dataset_config"))
    trainer = dict(keys.pop("trainer_args", None) or {})
    if "extra_kwargs" in data:
        data["dataset_config.extra_kwargs"] = data.pop("extra_kwargs")
    return {**trainer, **keys, **data}


def _of_lmms_list(path: Path) -> dict[str, Any] | None:
    """Return the configuration in a list of one task, as older versions of LMMS-Engine have it; None for any other file."""
    try:
        value, _ = read_yaml(path.read_bytes(), str(path), RecipeError)
    except OSError:
        return None  # read_document says why
    is_task = isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict)
    config = value[0].get("config") if is_task else None
    return config if isinstance(config, dict) and "dataset_config" in config else None


# Command lines


def _of_arguments(text: str, path: Path) -> Foreign:
    """Return the --arguments of a command line, without those of the program that launches it."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise RecipeError(f"{path}: not a command line: {error}") from error
    found = Foreign()
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in _NEXT_COMMAND:
            command.append(word)
            continue
        _read_command(_without_launcher(command, found), found, path)
        command = []
    found.keys = _with_config(found.keys, path)
    return found


def _without_launcher(command: list[str], found: Foreign) -> list[str]:
    """Return what follows the launcher and its options: `accelerate launch --config_file zero3.yaml`, `torchrun --nproc_per_node 8`."""
    named = [word.rpartition("/")[2] for word in command]
    is_launched = any(word in _LAUNCHERS for word in named) or any(
        word in _DISTRIBUTED for word in command
    )
    if not is_launched:
        return command
    for number, word in enumerate(command):
        is_module = number > 0 and command[number - 1] == _MODULE and word not in _DISTRIBUTED
        if is_module or word.endswith(".py") or named[number] in _PROGRAMS:
            first = number - 1 if is_module else number
            found.remarks.append(f"{' '.join(command[:first])}  (the launcher's)")
            return command[first:]
    return command


def _read_command(words: list[str], found: Foreign, path: Path) -> None:
    key = None
    if method := _method_of(words):
        found.found_method(method, path)
    for word in words:
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            key = name.replace("-", "_")
            found.add(key, _value(value) if has_value else True, path)
            key = None if has_value else key
        elif re.match("-[A-Za-z]", word):
            found.add(key := word, True, path)
        elif key == _MODULE:  # one value; what follows are the module's own arguments
            found.keys[key] = word
            key = None
        elif key is not None and not (
            word.endswith(".py") and found.keys[key] is not True
        ):  # the script itself is not a value
            before = found.keys[key]
            value_of_word = _value(word)
            found.keys[key] = value_of_word if before is True else [*as_list(before), value_of_word]
        else:
            key = None
            if word.endswith((".yaml", ".yml")):
                found.add(CONFIG, word, path)
            elif pair := re.fullmatch("([a-z][a-z0-9_.]*)=(.*)", word, re.DOTALL):
                found.add(pair[1], _value(pair[2]), path)


def _method_of(words: list[str]) -> str | None:
    """Return how a command trains: `trl dpo …`, `-m trl.scripts.dpo`, `dpo.py`."""
    for number, word in enumerate(words):
        is_named = (
            (number > 0 and words[number - 1] in ("trl", _MODULE))
            or word.endswith(".py")
            or word.startswith("trl.")
        )
        if is_named and (found := _METHOD_WORD.fullmatch(word)):
            return found[1]
        if word.startswith("--"):
            return None
    return None


def _with_config(keys: dict[str, Any], path: Path) -> dict[str, Any]:
    """Add the settings of the YAML file that a command line names; the command line itself counts first."""
    if not isinstance(name := keys.get(CONFIG), str):
        return keys
    file = next((place for place in (Path(name), path.parent / name) if place.is_file()), None)
    if file is None:
        raise RecipeError(
            f"{path}: names the settings {name}, which are not here; put them next to it, or import them alone"
        )
    return {**_of_yaml(file), **keys}


def _value(word: str) -> Any:
    """A value as argparse and YAML would read it."""
    if word.lower() in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(word.lower())
    if "$" in word:  # a variable of the shell
        return Computed(word)
    for read in (int, float, json.loads):
        try:
            return read(word)
        except ValueError:
            continue
    return word


# Python scripts


def _of_python(text: str, path: Path) -> Foreign:
    """Return the keyword arguments of calls such as DPOConfig(…), and the datasets and the model that the script names."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise RecipeError(
            f"{path}:{getattr(error, 'lineno', 1)}: not Python: {getattr(error, 'msg', error)}"
        ) from error
    script = _Script(tree, path)
    for call in script.calls:
        script.read(call)
    script.finish()
    return script.found


class _Script:
    """The calls of a script, in their order, and names that stand for one literal value."""

    def __init__(self, tree: ast.AST, path: Path) -> None:
        nodes = list(ast.walk(tree))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        self.calls = sorted(calls, key=lambda call: (call.lineno, call.col_offset))
        self.found = Foreign()
        self._path = path
        self._constants = _constants(nodes)
        self._tokenizers: list[Any] = []
        self._models: list[Any] = []
        self._data_sets: list[dict[str, Any]] = []

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in self._constants:
            return self._constants[node.id]
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, MemoryError, RecursionError):
            return Computed(ast.unparse(node))

    def read(self, call: ast.Call) -> None:
        """Take what a call says about data."""
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        config = _CONFIG_CLASS.fullmatch(name)
        trainer = _TRAINER_CLASS.fullmatch(name)
        if config or name in _OTHER_CLASSES:
            if config:
                self.found.found_method(config[1].lower(), self._path)
            for keyword in call.keywords:
                value = self._value(keyword.value)
                self.found.add(keyword.arg or f"**{ast.unparse(keyword.value)}", value, self._path)
        elif trainer:
            self.found.found_method(trainer[1].lower(), self._path)
            self._models += [
                self._value(keyword.value) for keyword in call.keywords if keyword.arg == "model"
            ]
            self._models += [self._value(argument) for argument in call.args[:1]]
        elif name == "from_pretrained" and call.args:
            of_class = getattr(getattr(call.func, "value", None), "id", "")
            names = self._tokenizers if re.search("Tokenizer|Processor", of_class) else self._models
            names.append(self._value(call.args[0]))
        elif name == "load_dataset":
            self._data_sets.append(self._data_set(call))
        elif name == "train_test_split":
            self._split(call)
        elif name in _CHANGES_RECORDS.split():
            self._changed(call, name)

    def _data_set(self, call: ast.Call) -> dict[str, Any]:
        """Return the arguments of load_dataset(path, name, …)."""
        members = dict(
            zip(("path", "name", "data_dir", "data_files", "split"), call.args, strict=False)
        )
        members |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        return {key: self._value(node) for key, node in members.items()}

    def _split(self, call: ast.Call) -> None:
        arguments = {keyword.arg: self._value(keyword.value) for keyword in call.keywords}
        if call.args:
            arguments["test_size"] = self._value(call.args[0])
        size = arguments.get("test_size", 0.25)  # the default of datasets
        if arguments.get("shuffle") is False:
            self.found.remarks.append(
                f"train_test_split(test_size={size}, shuffle=False)  (the last records, not a random choice: write them as "
                f"path@[:90%] and eval: path@[90%:])"
            )
            return
        self.found.add(SPLIT_SIZE, size, self._path)

    def _changed(self, call: ast.Call, name: str) -> None:
        """Say that a script changes records, if that is what a call does: many classes have a method of such a name."""
        text = ast.unparse(call)
        if self._data_sets or name.endswith("datasets") or "dataset" in text.lower():
            short = text if len(text) <= 100 else f"{text[:99]}…"
            self.found.remarks.append(
                f"line {call.lineno}: {short}  (the script changes or chooses records: do the same with source.map(…), or in the data)"
            )

    def finish(self) -> None:
        """Name the model and the datasets."""
        if "model_name_or_path" not in self.found.keys:
            for names in (self._tokenizers, self._models):
                literal = {name for name in names if type(name) is str}
                if len(literal) == 1:
                    self.found.keys["model_name_or_path"] = literal.pop()
                    break
                if literal or names:
                    shown = ", ".join(dict.fromkeys(str(name) for name in names))
                    self.found.keys["model_name_or_path"] = Computed(shown)
                    break
        if self._data_sets:
            self.found.keys[LOAD_DATASET] = self._data_sets


def _constants(nodes: list[ast.AST]) -> dict[str, Any]:
    """Return the values of names that are assigned once, and to a literal."""
    values: dict[str, Any] = {}
    times: Counter[str] = Counter()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            times[node.id] += 1
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                try:
                    values[targets[0].id] = ast.literal_eval(node.value)
                except (ValueError, TypeError, MemoryError, RecursionError):
                    continue
    return {name: value for name, value in values.items() if times[name] == 1}


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, nothing as an empty one, and one value as a list of it."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
