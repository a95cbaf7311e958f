"""Read a tokenizer.json and the files beside it: names of special tokens, added tokens, chat templates.

The content of these files names a tokenizer, never their path.  A digest of the content is remembered under what a quick look at the
files tells (path, size, inode, times of the last write and change), as for files of records, so that a tokenizer that did not change is not
read.  Files that changed within the clock's last tick are always read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import SourceChanged, SourceError, TemplateError
from penstock.files import changed, identify, read
from penstock.fingerprint import Digest
from penstock.templates.facts import recall

# What chat templates are given by name; models may name more under `extra_special_tokens`.
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE = ("extra_special_tokens", "model_specific_special_tokens")
_CONFIG, _MAP, _TEMPLATE = "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"
_MOST_TOKENS = 10**9  # transformers writes 10**30 where nobody knows
_ADDED, _GENERATION = "added_tokens.json", "generation_config.json"
_POINTER = b"version https://git-lfs.github.com/"
_TEMPLATES = ("additional_chat_templates", "chat_templates")
# What a folder without tokenizer.json may hold instead, and only transformers can convert.
_OTHER_FORMS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "vocab.json", "vocab.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The text of a tokenizer.json and what the files beside it say."""

    text: str
    path: str | None = None  # of tokenizer.json
    special_tokens: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token … → content
    additional_special_tokens: list[str] = field(default_factory=list)
    chat_templates: dict[str, str] = field(default_factory=dict)  # "default" and named ones
    added_tokens: dict[str, Any] | None = None  # of tokenizer_config.json: {id: {content, special, …}}
    legacy_tokens: dict[str, Any] = field(default_factory=dict)  # of added_tokens.json: {content: id}
    named_tokens: list[Any] = field(default_factory=list)  # special ones, as written: a string, or a dict with flags
    model_max_length: int | None = None  # the longest sequence that the model was made for, where the files say so
    stop_ids: list[int] = field(default_factory=list)  # at which generation stops, as generation_config.json has them


def find_json(place: Path) -> Path:
    """The tokenizer.json of a file or folder that exists."""
    if not place.is_dir():
        return place
    file = place / "tokenizer.json"
    if file.is_file():
        return file
    others = [name for name in _OTHER_FORMS if (place / name).is_file()]
    if others:
        raise TemplateError(
            f"{place}: holds {', '.join(others)} but no tokenizer.json, and only that is read; make one with "
            f"transformers: AutoTokenizer.from_pretrained({str(place)!r}).save_pretrained(another folder)"
        )
    raise TemplateError(f"{place}: no tokenizer there, expected a tokenizer.json in this folder")


def content_digest(file: Path, cache: Cache | None) -> str:
    """A digest of everything that is read for this tokenizer.json, as it is now."""
    if cache is None:
        return _digest(_snapshot(file))
    try:
        known = [identify(str(path)) for path in _paths(file)]

        def compute() -> str:
            for one in known:
                changed(one)  # refuses a file whose next write could get the same time
            content = _digest(_snapshot(file))
            for one in known:
                changed(one)
            return content

        return str(recall("content", about=[asdict(one) for one in known], compute=compute, cache=cache))
    except (SourceChanged, OSError):
        return _digest(_snapshot(file))
    except SourceError as error:
        raise TemplateError(str(error)) from error


def read_files(file: Path, content: str) -> TokenizerFiles:
    """What the files say; TemplateError where their content has not this digest any more."""
    found = _snapshot(file)
    if _digest(found) != content:
        raise TemplateError(f"{file}: changed since the work began; run again")
    config = _parsed(found, file.with_name(_CONFIG))
    named, additional = special_tokens(config)
    given = _parsed(found, file.with_name(_MAP))
    if given:
        # as transformers has it: the map is the older form, and counts where the config is as old or silent
        others, more = special_tokens(given)
        older = "added_tokens_decoder" not in config
        named |= {name: token for name, token in others.items() if older or name not in config}
        additional = additional or more
    written = {_content(token): token for token in _tokens(config, given)}  # some with flags
    return TokenizerFiles(
        text=_decoded(found, file),
        path=str(file),
        special_tokens=named,
        additional_special_tokens=additional,
        chat_templates=_templates_beside(found) or chat_templates(config.get("chat_template"), _CONFIG),
        added_tokens=config.get("added_tokens_decoder"),
        legacy_tokens=_parsed(found, file.with_name(_ADDED)),
        named_tokens=[written.get(token, token) for token in dict.fromkeys([*named.values(), *additional])],
        model_max_length=max_length(config.get("model_max_length")),
        stop_ids=_stop_ids(_parsed(found, file.with_name(_GENERATION)), file.with_name(_GENERATION)),
    )


def max_length(given: Any) -> int | None:
    """`model_max_length` as a number of tokens; None where it is absent, or the huge number that stands for "not known"."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return int(given) if is_number and 0 < given <= _MOST_TOKENS else None


def special_tokens(config: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Named special tokens, and those without a name, from tokenizer_config.json or a `special_tokens_map`."""
    extra = {key: value for part in _MORE if isinstance(config.get(part), dict) for key, value in config[part].items()}
    named = {name: config.get(name) for name in NAMED} | extra
    unnamed = config.get("additional_special_tokens") or config.get("extra_special_tokens")
    return (
        {name: content for name, token in named.items() if (content := _content(token)) is not None},
        list(filter(None, map(_content, unnamed if isinstance(unnamed, (list, tuple)) else ()))),
    )


def _stop_ids(config: Mapping[str, Any], path: Path) -> list[int]:
    """`eos_token_id`: one id or a list of them."""
    given = config.get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(one) is int and one >= 0 for one in ids):
        raise TemplateError(f"{path}: eos_token_id is {given!r}, expected an id or a list of ids")
    return ids


def _tokens(*files: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Special tokens that are written with more than their content."""
    for file in files:
        for value in file.values():
            for token in value if isinstance(value, list) else [value]:
                if isinstance(token, dict) and isinstance(token.get("content"), str):
                    yield token


def _content(token: Any) -> str | None:
    """A token as configs write it: a string, or a dict or `AddedToken` with its content."""
    content = token.get("content") if isinstance(token, dict) else getattr(token, "content", token)
    return content if isinstance(content, str) else None


def chat_templates(given: Any, where: str) -> dict[str, str]:
    """By name, from the forms in which `chat_template` is written: a string, a dict, or a list of {name, template}."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list) and all(isinstance(one, dict) and {"name", "template"} <= one.keys() for one in given):
        given = {one["name"]: one["template"] for one in given}
    if isinstance(given, dict) and all(isinstance(part, str) for pair in given.items() for part in pair):
        return dict(given)
    raise TemplateError(
        f"{where}: chat_template is {type(given).__name__}, expected a string or a list of name, template"
    )


def _paths(file: Path) -> list[Path]:
    """tokenizer.json and the other files that say something about it, in a fixed order."""
    named = [file.with_name(name) for name in (_CONFIG, _MAP, _ADDED, _GENERATION, _TEMPLATE)]
    inside = [path for folder in _TEMPLATES for path in sorted((file.parent / folder).glob("*.jinja"))]
    return [file, *(path for path in named if path.is_file()), *inside]


def _snapshot(file: Path) -> dict[Path, bytes]:
    """The content of all files, read once: what is digested is what is parsed."""
    try:
        return {path: read(str(path)) for path in _paths(file)}
    except SourceError as error:
        raise TemplateError(str(error)) from error


def _digest(found: dict[Path, bytes]) -> str:
    whole = Digest()
    for path, content in found.items():
        whole.update(path.name.encode())
        whole.update(content)
    return whole.hexdigest()


def _templates_beside(found: dict[Path, bytes]) -> dict[str, str]:
    """`chat_template.jinja` is the default and comes first."""
    return {
        "default" if path.name == _TEMPLATE else path.stem: _decoded(found, path)
        for path in found
        if path.suffix == ".jinja"
    }


def _parsed(found: dict[Path, bytes], path: Path) -> dict[str, Any]:
    if path not in found:
        return {}
    try:
        parsed = json.loads(found[path])  # not orjson: Python writes NaN and Infinity, and others a byte order mark
    except ValueError as error:
        raise TemplateError(f"{path}: not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise TemplateError(f"{path}: is a {type(parsed).__name__}, expected an object")
    return parsed


def _decoded(found: dict[Path, bytes], path: Path) -> str:
    if found[path].startswith(_POINTER):
        raise TemplateError(f"{path}: is a pointer of Git LFS, not the file; run `git lfs pull` in its repository")
    try:
        return found[path].decode()
    except UnicodeDecodeError as error:
        raise TemplateError(f"{path}: not UTF-8 at byte {error.start}") from error
