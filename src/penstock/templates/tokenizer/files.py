"""Find a tokenizer.json, here or in the Hugging Face cache, and read it and the files next to it.

A tokenizer is identified by the content of these files, never by their path.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache import Cache
from penstock.errors import SourceError, TemplateError
from penstock.fingerprint import Digest
from penstock.places.files import is_remote, is_web, open_place, read, with_home

if TYPE_CHECKING:
    import tokenizers

# What chat templates get by name; models may name more under `extra_special_tokens`.
_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_MORE = ("extra_special_tokens", "model_specific_special_tokens")
_CONFIG = "tokenizer_config.json"
_MAP = "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
_ADDED = "added_tokens.json"
_GENERATION = "generation_config.json"
# What is downloaded of a model: no weights.
_DOWNLOADED_FILES = [
    "tokenizer.json",
    _CONFIG,
    _MAP,
    _ADDED,
    _GENERATION,
    "*.jinja",
    "*/*.jinja",
]
PROCESSOR_FILES = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "config.json",
)
_TEMPLATE_FOLDERS = ("additional_chat_templates", "chat_templates")
_GIT_LFS = b"version https://git-lfs.github.com/"
_MAX_TOKENS = 10**9  # transformers writes 10**30 for a length that is not known
# Other files of tokenizers, which only transformers can convert.
_OTHER_FORMS = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
)
_HUB_NAME = re.compile(r"(?P<name>[\w][\w.-]*(?:/[\w][\w.-]*)?)(?:@(?P<revision>[\w][\w./-]*))?")
_FLAGS = ("special", "lstrip", "rstrip", "normalized", "single_word")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The text of a tokenizer.json and what the files next to it say."""

    text: str
    path: str | None = None  # of tokenizer.json
    special_tokens: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token … → content
    chat_templates: dict[str, str] = field(default_factory=dict)  # "default" and named ones
    # Of tokenizer_config.json: {id: {content, special, …}}.
    added_tokens: dict[str, Any] | None = None
    legacy_tokens: dict[str, Any] = field(
        default_factory=dict
    )  # of added_tokens.json: {content: id}
    named_tokens: list[Any] = field(
        default_factory=list
    )  # special ones as written: a string, or a dict with flags
    model_max_length: int | None = None  # the longest sequence of the model, if the files say so
    stop_ids: list[int] = field(
        default_factory=list
    )  # that end generation, from generation_config.json


def find_tokenizer(given: str | os.PathLike[str], cache: Cache | None = None) -> Path:
    """The tokenizer.json of a file, a folder, a hub name or a URL, whose files are fetched into the cache."""
    place = _fetched(os.fspath(given), cache) if is_remote(given) else with_home(given).absolute()
    if not place.exists():
        if not (isinstance(given, str) and is_hub_name(given)):
            raise TemplateError(
                f"{given}: no tokenizer there, expected a tokenizer.json or a folder that holds one"
            )
        place = _hub_folder(given)
    if not place.is_dir():
        return place
    if (file := place / "tokenizer.json").is_file():
        return file
    others = [name for name in _OTHER_FORMS if (place / name).is_file()]
    if not others:
        raise TemplateError(
            f"{place}: no tokenizer there, expected a tokenizer.json in this folder"
        )
    raise TemplateError(
        f"{place}: holds {', '.join(others)} but no tokenizer.json, which Penstock needs; make one with "
        f"transformers: AutoTokenizer.from_pretrained({str(place)!r}).save_pretrained(another folder)",
        code="no_tokenizer_json",
    )


def _fetched(url: str, cache: Cache | None) -> Path:
    """A local copy of a tokenizer.json, with the files next to it."""
    from penstock.cache.fetched import fetch_folder

    if url.startswith("hf://"):
        raise TemplateError(
            f"{url}: write the name of a model on the hub as a tokenizer, as org/name@revision"
        )
    folder, _, last = (
        url.rstrip("/").rpartition("/")
        if url.endswith(".json")
        else (url.rstrip("/"), "", "tokenizer.json")
    )
    try:
        names = [last, _CONFIG, _MAP, _ADDED, _GENERATION, _TEMPLATE, *PROCESSOR_FILES]
        for each in () if is_web(folder) else _TEMPLATE_FOLDERS:
            names += [
                path[len(folder) + 1 :]
                for path in open_place(folder)[0].glob(f"{folder}/{each}/*.jinja")
            ]
        found = fetch_folder(folder, names, cache)
    except (SourceError, OSError) as error:
        raise TemplateError(f"cannot fetch the tokenizer: {error}") from error
    if not (found / last).is_file():
        raise TemplateError(
            f"{url}: no tokenizer there, expected a tokenizer.json or a folder that holds one"
        )
    return found / last


def content_digest(file: Path) -> str:
    """A digest of everything that is read for this tokenizer.json, as it is now: 2 to 10 ms for a large one."""
    return digest_of(snapshot(_paths(file)))


def _paths(file: Path) -> list[Path]:
    """tokenizer.json and the other files about it, in a fixed order."""
    named = [file.with_name(name) for name in (_CONFIG, _MAP, _ADDED, _GENERATION, _TEMPLATE)]
    inside = [
        path
        for folder in _TEMPLATE_FOLDERS
        for path in sorted((file.parent / folder).glob("*.jinja"))
    ]
    return [file, *(path for path in named if path.is_file()), *inside]


def snapshot(paths: Sequence[Path]) -> dict[Path, bytes]:
    """The content of all files, read once, so that the digest is of what is parsed."""
    try:
        return {path: read(str(path)) for path in paths}
    except SourceError as error:
        raise TemplateError(str(error)) from error


def digest_of(found: dict[Path, bytes]) -> str:
    whole = Digest()
    for path, content in found.items():
        whole.update(path.name.encode())
        whole.update(content)
    return whole.hexdigest()


def read_files(file: Path, content: str) -> TokenizerFiles:
    """Read a tokenizer.json and the files next to it, which must still have the digest `content`."""
    found = snapshot(_paths(file))
    if digest_of(found) != content:
        raise TemplateError(f"{file}: changed since the work began; run again")
    config, older, legacy, generation = (
        parsed(found, file.with_name(name)) for name in (_CONFIG, _MAP, _ADDED, _GENERATION)
    )
    named, additional = _special_tokens(config)
    # as in transformers: the map is the older form, used if the config is as old or does not name the token
    others, more = _special_tokens(older)
    named |= {
        name: token
        for name, token in others.items()
        if "added_tokens_decoder" not in config or name not in config
    }
    additional = additional or more
    values = [value for part in (config, older) for value in part.values()]
    tokens = [
        token for value in values for token in (value if isinstance(value, list) else [value])
    ]
    written = {
        _content(token): token
        for token in tokens
        if isinstance(token, dict) and _content(token) is not None
    }
    templates = {path: _decoded(found, path) for path in found if path.suffix == ".jinja"}
    beside = {
        "default" if path.name == _TEMPLATE else path.stem: text for path, text in templates.items()
    }
    return TokenizerFiles(
        text=_decoded(found, file),
        path=str(file),
        special_tokens=named,
        chat_templates=beside or _chat_templates(config.get("chat_template"), _CONFIG),
        added_tokens=config.get("added_tokens_decoder"),
        legacy_tokens=legacy,
        named_tokens=[
            written.get(token, token) for token in dict.fromkeys([*named.values(), *additional])
        ],
        model_max_length=_max_length(config.get("model_max_length")),
        stop_ids=_stop_ids(generation.get("eos_token_id"), file.with_name(_GENERATION)),
    )


def from_transformers(given: Any) -> TokenizerFiles:
    """The present state of a fast tokenizer of transformers, with changes made since loading."""
    return TokenizerFiles(
        text=given.backend_tokenizer.to_str(),
        special_tokens=_special_tokens(given.special_tokens_map)[0],
        chat_templates=_chat_templates(given.chat_template, type(given).__name__),
        model_max_length=_max_length(getattr(given, "model_max_length", None)),
    )


def parsed(found: dict[Path, bytes], path: Path) -> dict[str, Any]:
    """The object in one of the files; {} if the file does not exist."""
    try:
        value = json.loads(
            found.get(path, b"{}")
        )  # not orjson: files may have NaN, Infinity or a byte order mark
    except ValueError as error:
        raise TemplateError(f"{path}: not JSON: {error}; copy the folder again") from error
    if not isinstance(value, dict):
        raise TemplateError(
            f"{path}: is a {type(value).__name__}, expected an object; copy the folder again"
        )
    return value


def _decoded(found: dict[Path, bytes], path: Path) -> str:
    if found[path].startswith(_GIT_LFS):
        raise TemplateError(
            f"{path}: is a pointer of Git LFS, not the file; run `git lfs pull` in its repository"
        )
    try:
        return found[path].decode()
    except UnicodeDecodeError as error:
        raise TemplateError(f"{path}: not UTF-8 at byte {error.start}") from error


def _max_length(given: Any) -> int | None:
    """`model_max_length` as a number of tokens; None if it is absent or the huge number for "not known"."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return int(given) if is_number and 0 < given <= _MAX_TOKENS else None


def _stop_ids(given: Any, path: Path) -> list[int]:
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(one) is int and one >= 0 for one in ids):
        raise TemplateError(f"{path}: eos_token_id is {given!r}, expected an id or a list of ids")
    return ids


def _special_tokens(config: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Named special tokens, and those without a name, from tokenizer_config.json or a `special_tokens_map`."""
    extra = {
        key: value
        for part in _MORE
        if isinstance(config.get(part), dict)
        for key, value in config[part].items()
    }
    named = {name: config.get(name) for name in _NAMED} | extra
    unnamed = config.get("additional_special_tokens") or config.get("extra_special_tokens")
    return (
        {
            name: content
            for name, token in named.items()
            if (content := _content(token)) is not None
        },
        list(filter(None, map(_content, unnamed if isinstance(unnamed, (list, tuple)) else ()))),
    )


def _content(token: Any) -> str | None:
    """The text of a token: configs write a string, a dict or an `AddedToken`."""
    content = token.get("content") if isinstance(token, dict) else getattr(token, "content", token)
    return content if isinstance(content, str) else None


def _chat_templates(given: Any, where: str) -> dict[str, str]:
    """Chat templates by name.  `chat_template` is a string, a dict, or a list of {name, template}."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list) and all(
        isinstance(one, dict) and {"name", "template"} <= one.keys() for one in given
    ):
        given = {one["name"]: one["template"] for one in given}
    if isinstance(given, dict) and all(
        isinstance(part, str) for pair in given.items() for part in pair
    ):
        return dict(given)
    kind = type(given).__name__
    raise TemplateError(
        f"{where}: chat_template is {kind}, expected a string or a list of name, template"
    )


# Tokens that the files next to tokenizer.json add


def with_added(opened: "tokenizers.Tokenizer", files: TokenizerFiles) -> tuple[str, str] | None:
    """Return tokenizer.json with the tokens that transformers would add, with the same ids, and a warning; None if there are none.

    Usually there are none, because they were written into both files.  If the files disagree, the config decides how a token is found, and
    a token that only it has gets the next free id.  Changes `opened`.  The warning is "" without new ids.
    """
    own = {token.content: token for token in opened.get_added_tokens_decoder().values()}
    special = {_content(token) for token in files.named_tokens}
    listed: Any = files.added_tokens
    if listed is None:
        listed = {
            number: {
                "content": token,
                "special": token in special,
                "normalized": token not in special,
            }
            for token, number in files.legacy_tokens.items()
            if token not in own
        }
    try:
        ordered = sorted(
            ((int(number), dict(token)) for number, token in listed.items()),
            key=lambda pair: pair[0],
        )
    except (ValueError, TypeError, AttributeError) as error:
        where = files.path or "tokenizer"
        expected = "{id: {content, special, …}}"
        raise TemplateError(
            f"{where}: added tokens next to it are not {expected}: {error}"
        ) from error
    tokens: dict[str, Mapping[str, Any]] = {
        str(token.get("content")): token for _, token in ordered
    }
    for token in files.named_tokens:
        if (content := str(_content(token))) not in own:
            tokens.setdefault(content, token if isinstance(token, dict) else {"content": token})
    differing = {
        content: token for content, token in tokens.items() if _differs(token, own.get(content))
    }
    if not differing:
        return None
    size = opened.get_vocab_size(with_added_tokens=True)
    opened.add_tokens([_added(token, content in special) for content, token in differing.items()])
    ids = opened.get_vocab(with_added_tokens=True).values()
    if len(ids) == size:
        return opened.to_str(), ""
    new = ", ".join(repr(content) for content in differing if content not in own)[:200]
    return opened.to_str(), (
        f"the files next to it add {len(ids) - size} tokens that it lacks (among {new}), with ids up to {max(ids)}: a "
        f"model needs a row for each"
    )


def _differs(token: Mapping[str, Any], own: "tokenizers.AddedToken | None") -> bool:
    return own is None or any(
        flag in token and bool(token[flag]) != bool(getattr(own, flag)) for flag in _FLAGS
    )


def _added(token: Mapping[str, Any], is_named: bool) -> "tokenizers.AddedToken":
    import tokenizers

    flags = {flag: bool(token[flag]) for flag in _FLAGS if flag in token}
    flags["special"] = is_named or flags.get("special", True)
    return tokenizers.AddedToken(str(token["content"]), **flags)


# The Hugging Face cache


def is_hub_name(given: str) -> bool:
    """Whether this is `org/name`, `name`, or either with `@revision`; never a path that ends with .json."""
    return (
        _HUB_NAME.fullmatch(given) is not None and ".." not in given and not given.endswith(".json")
    )


def _hub_folder(given: str) -> Path:
    """Return the folder of a model's tokenizer.json: its snapshot in the Hugging Face cache, which is downloaded if it is not there."""
    match = _HUB_NAME.fullmatch(given)
    assert match is not None, given
    name = match["name"]
    revision = match["revision"] or "main"
    cache = _hub_cache()
    folder = _snapshot_in(cache, name, revision)
    if (folder / "tokenizer.json").is_file():
        return folder
    return _downloaded(cache, name, revision)


def _snapshot_in(cache: Path, name: str, revision: str) -> Path:
    """Return the folder that huggingface_hub gives a revision of a model, whether or not it is there."""
    model = cache / f"models--{name.replace('/', '--')}"
    ref = model / "refs" / revision  # of a branch or tag: a file that holds its commit
    commit = ref.read_text().strip() if ref.is_file() else revision
    return model / "snapshots" / commit


def _downloaded(cache: Path, name: str, revision: str) -> Path:
    """Download the files of a model's tokenizer; return their folder."""
    problem = f"tokenizer {name!r} not found: no such local path, and revision {revision!r} is not in the Hugging Face cache {cache}"
    advice = (
        f"check the spelling and the network; offline, pass the path of a folder with a tokenizer.json, or run `hf download {name} "
        f"--include 'tokenizer*' '*.jinja'` where there is a network and set HF_HOME to that cache"
    )
    try:
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(
                name, revision=revision, cache_dir=cache, allow_patterns=_DOWNLOADED_FILES
            )
        )
    except ImportError as error:
        raise TemplateError(
            f"{problem}; pip install 'penstock[hf]' to download it, or {advice}"
        ) from error
    # No network, offline by choice, no such name and no access have no class in common.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise TemplateError(
            f"{problem}, and the Hub did not give it ({type(error).__name__}: {reason}); {advice}"
        ) from error


def _hub_cache() -> Path:
    """As huggingface_hub finds it, without importing it."""
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    home = (
        os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    )
    return with_home(hub or f"{home}/hub")
