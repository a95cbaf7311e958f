"""The card of a pushed store: what it holds, what made it, under which licence, and how to load it."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

import yaml

import penstock
from penstock.fingerprint import digest
from penstock.reasons import REASONS
from penstock.recipe import Recipe
from penstock.store.loaded import tokenizer_digest
from penstock.store.manifest import Manifest
from penstock.store.shards import FORMAT_VERSION, shard_name
from penstock.templates.protocols import tokenizer_of
from penstock.words import percent, plural, short_number, size

if TYPE_CHECKING:
    from penstock.store.store import Store

_SIZES = (
    *((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M")),
    *((10**7, "1M<n<10M"), (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B")),
    *((10**11, "10B<n<100B"), (10**12, "100B<n<1T")),
)
_MOST_FILES = 500  # listed in the head, in the order of the store
_MOST_CHARACTERS = 100  # of a setting
_OF_HUB_CACHE = re.compile(r"models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/")


@dataclass(frozen=True, slots=True)
class Licence:
    """The fields of the hub about a licence."""

    license: str
    name: str | None = None
    link: str | None = None
    of_sources: Mapping[str, str] = field(default_factory=dict)  # by the name of each source


def card_of(
    store: "Store",
    repo: str,
    manifest: Manifest,
    licence: Licence,
    *,
    recipe: Any,
    tokenizer: str | None,
) -> str:
    """Return the text of README.md.  tokenizer: its name on the hub, if the user gave one."""
    parts = [
        f"---\n{yaml.safe_dump(_head(store, manifest, licence), sort_keys=False, allow_unicode=True)}---\n",
        f"# {store.name}\n",
        f"Samples for training: token ids and loss masks, made by Penstock {penstock.__version__} and checked by digests. "
        f"The records that they were made of are not here.\n",
        _loading(repo),
        _contents(store, manifest),
        _dropped(manifest),
        _made_by(store, manifest, tokenizer),
        _recipe(recipe),
        _licence(licence),
    ]
    return "\n".join(part for part in parts if part)


def _head(store: "Store", manifest: Manifest, licence: Licence) -> dict[str, Any]:
    head: dict[str, Any] = {"license": licence.license}
    if licence.name is not None:
        head["license_name"] = licence.name
    if licence.link is not None:
        head["license_link"] = licence.link
    head["pretty_name"] = store.name
    head["size_categories"] = [_size_category(manifest.counts.samples)]
    head["tags"] = ["penstock", "tokenized"]
    files = [shard_name(entry.key) for entry in manifest.shards]
    shown: str | list[str] = files if len(files) <= _MOST_FILES else "shards/**/*.arrow"
    if files:
        train = {"split": "train", "path": shown}
        head["configs"] = [{"config_name": "default", "data_files": [train]}]
    return head


def _size_category(samples: int) -> str:
    for most, name in _SIZES:
        if samples < most:
            return name
    return "n>1T"


def _loading(repo: str) -> str:
    return (
        "## Load it\n\n```python\nimport penstock as ps\nfrom penstock.store import Store\n\n"
        f'store = Store.load_from_hub("{repo}")  # every byte is checked; tokenizer=… adds the texts\n'
        "loader = ps.Loader(store, batch_size=8, max_length=4096)\n```\n\n"
        f'`pip install "penstock[hf]"`. Format {FORMAT_VERSION}: shards are Arrow files, which `datasets.load_dataset("{repo}")` reads, '
        "too, with a row without tokens for each record that was dropped.\n"
    )


def _contents(store: "Store", manifest: Manifest) -> str:
    counts = manifest.counts
    num_bytes = sum(manifest.shard_files.values())
    rows = [
        ("records", f"{counts.rows:,}"),
        ("samples", f"{counts.samples:,}"),
        ("tokens", f"{counts.tokens:,} ({short_number(counts.tokens)})"),
        ("trained tokens", f"{counts.trained:,} ({percent(counts.trained, counts.tokens)})"),
        ("dropped records", f"{counts.rows - counts.samples:,}"),
        ("shards", f"{len(manifest.shards):,} ({size(num_bytes)})"),
        ("ids of the vocabulary", f"{store.vocab_size:,}"),
        ("columns", ", ".join(f"`{name}`" for name in _columns(store))),
        ("fingerprint", f"`{store.fingerprint}`"),
    ]
    return "## What it holds\n\n| | |\n|---|---|\n" + _table(rows)


def _columns(store: "Store") -> list[str]:
    return ["input_ids", "loss_mask", *(column.name for column in store.columns)]


def _dropped(manifest: Manifest) -> str:
    counts = manifest.counts
    if not counts.dropped:
        return ""
    rows = []
    for reason, part in counts.dropped.items():
        meaning = REASONS[reason].meaning if reason in REASONS else ""
        rows.append((f"`{reason}`", meaning, f"{part.count:,}"))
    lost = counts.rows - counts.samples
    head = f"{plural(lost, 'record')} of {counts.rows:,} gave no sample.\n\n| reason | meaning | records |\n|---|---|---|\n"
    return f"## Dropped records\n\n{head}{_table(rows)}"


def _made_by(store: "Store", manifest: Manifest, name: str | None) -> str:
    identity = manifest.template
    rows = []
    content = tokenizer_digest(identity)
    if content is not None:
        tokenizer = tokenizer_of(store.template)
        path = None if tokenizer is None else tokenizer.path
        name = name or _tokenizer_name(path)
        rows.append(("tokenizer", f"`{name}`" if name else "without a name"))
    settings = {key: value for key, value in identity.items() if key != "sample_columns"}
    rows += [(f"`{key}`", _shown(value)) for key, value in _flat(settings)]
    text = "## What made it\n\n| | |\n|---|---|\n"
    return text + _table(rows)


def _flat(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a template: those of its parts, such as its reader, by names with a dot."""
    for key, value in settings.items():
        if isinstance(value, dict) and value and not above:
            yield from _flat(value, f"{key}.")
        else:
            yield f"{above}{key}", value


def _tokenizer_name(path: str | None) -> str | None:
    """Return the name of a tokenizer on the hub, or of its file or folder, without the folders above."""
    if path is None:
        return None
    on_hub = _OF_HUB_CACHE.search(path)
    if on_hub is not None:
        return f"{on_hub['org']}/{on_hub['name']}"
    file = Path(path)
    return file.parent.name if file.name == "tokenizer.json" else file.name


def _shown(value: Any) -> str:
    """Return a setting in one cell of a table."""
    text = yaml.safe_dump(
        without_folders(value), default_flow_style=True, width=10**9, allow_unicode=True
    )
    text = text.removesuffix("\n...\n").strip()
    if len(text) <= _MOST_CHARACTERS and "\n" not in text and "`" not in text:
        return f"`{text}`"
    return f"{len(text):,} characters, digest `{digest(text.encode())[:8]}`"


def _recipe(recipe: Any) -> str:
    if recipe is None:
        return ""
    read = Recipe.read(recipe)
    folder = None if read.file is None else os.path.dirname(os.path.abspath(read.file))  # noqa: PTH100, PTH120 - may be a URL
    value = without_folders(yaml.safe_load(read.to_yaml(folder)))
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return f"## Recipe\n\n```yaml\n{text}```\n"


def without_folders(value: Any) -> Any:
    """Return a setting with local paths cut to their last part: a card is read by others."""
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(each) for each in value]
    if isinstance(value, str) and "\n" not in value:
        if value.startswith(("/", "~")) and len(value) > 1:
            return f"…/{Path(value).name}"
        if PureWindowsPath(value).drive and "\\" in value:
            return f"…/{PureWindowsPath(value).name}"
    return value


def _licence(licence: Licence) -> str:
    name = licence.license if licence.name is None else licence.name
    link = "" if licence.link is None else f" ({licence.link})"
    text = f"## Licence\n\nOf this dataset: {name}{link}.\n"
    if licence.license == "unknown":
        text = "## Licence\n\nNo licence was named by who pushed this: ask before you use it.\n"
    if not licence.of_sources:
        return text
    rows = [(name, of_source) for name, of_source in licence.of_sources.items()]
    return f"{text}\n| source | licence |\n|---|---|\n{_table(rows)}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    lines = []
    for row in rows:
        cells = [" ".join(cell.replace("|", "\\|").split()) for cell in row]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)
