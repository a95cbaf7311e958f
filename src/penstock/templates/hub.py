"""Where on this machine is the model "org/name"?  In the Hugging Face cache, or there after a download (extra `hf`)."""

import os
import re
from pathlib import Path

from penstock.errors import TemplateError

_NAME = re.compile(r"(?P<name>[\w][\w.-]*(?:/[\w][\w.-]*)?)(?:@(?P<revision>[\w][\w./-]*))?")
# Everything a tokenizer may be described by; weights stay where they are.
_WANTED = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "*.jinja",
    "*/*.jinja",
]


def is_hub_name(given: str) -> bool:
    """`org/name`, `name`, or either with `@revision`; a file that is not there is no name."""
    return _NAME.fullmatch(given) is not None and ".." not in given and not given.endswith(".json")


def hub_folder(given: str) -> Path:
    """The snapshot of a model that holds its tokenizer.json: the one in the cache, else downloaded."""
    match = _NAME.fullmatch(given)
    assert match is not None, given
    name, revision = match["name"], match["revision"] or "main"
    return _cached(name, revision) or _download(name, revision)


def _cached(name: str, revision: str) -> Path | None:
    home = _cache() / f"models--{name.replace('/', '--')}"
    ref = home / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    folder = home / "snapshots" / commit
    return folder if (folder / "tokenizer.json").is_file() else None


def _cache() -> Path:
    """As huggingface_hub finds it, without importing it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _download(name: str, revision: str) -> Path:
    advice = (
        f"give the path of a folder that holds its tokenizer.json, or run `hf download {name} "
        f"--include 'tokenizer*' '*.jinja'` where there is a network and set HF_HOME to that cache"
    )
    start = f"{name}: no such path here and no {revision!r} of it in the Hugging Face cache {_cache()}"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise TemplateError(f"{start}; pip install 'penstock[hf]' to download it, or {advice}") from error
    try:
        folder = Path(snapshot_download(name, revision=revision, cache_dir=_cache(), allow_patterns=_WANTED))
    except Exception as error:  # no network, offline by choice, no such name, no access: each has a class of its own
        reason = " ".join(str(error).split())[:200]
        raise TemplateError(f"{start}; the download failed ({type(error).__name__}: {reason}); {advice}") from error
    return folder
