"""Put a prepared store on the Hugging Face hub, with a card, and get it back.

A repository holds the samples as Parquet (`input_ids`, `loss_mask`), `penstock.json` with the counts that `load` compares, the recipe if it
was given, and README.md.  All files come with one commit, so a reader never sees a part of a store.  Nothing of the source is uploaded: no
names of files, no text beside the tokens.
"""

import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import SourceError, StoreError
from penstock.templates.protocols import tokenizer_of
from penstock.words import plural

if TYPE_CHECKING:
    from penstock.store.store import Store

_log = logging.getLogger("penstock")

_FACTS = "penstock.json"
_RECIPE = "recipe.yaml"
_CARD = "README.md"
_VERSION = 1
_MOST_TOKENS = 1 << 27  # of a file: 512 MiB of ids at most
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_SIZE_NAMES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a card says that the store does not know."""

    title: str
    recipe: str | None
    tokenizer: str | None
    license: str | None
    source_licenses: Mapping[str, str]


def push_store(
    store: "Store",
    name: str,
    *,
    recipe: str | os.PathLike[str] | None,
    tokenizer: str | None,
    license: str | None,
    source_licenses: Mapping[str, str] | None,
    private: bool,
    revision: str | None,
    token: str | None,
) -> str:
    """Upload a store in one commit; return the commit's id."""
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"push_to_hub: {name!r} is not the name of a data set, expected 'org/name'"
        )
    if store.columns:
        columns = ", ".join(column.name for column in store.columns)
        raise StoreError(
            f"{store!r} has the columns {columns}, which a data set of tokens on the hub cannot give back; push the records, and prepare "
            f"them where they are used"
        )
    if not store.wait().counts.samples:
        raise StoreError(f"{store!r} has no samples to push")
    about = About(
        title=name,
        recipe=None if recipe is None else Path(recipe).read_text(encoding="utf-8"),
        tokenizer=tokenizer,
        license=license,
        source_licenses=dict(source_licenses or {}),
    )
    hub = _hub()
    api = hub.HfApi(token=token)
    facts = _facts(store, about)
    with tempfile.TemporaryDirectory(prefix="penstock-push-") as folder:
        files: dict[str, Any] = dict(_write_samples(store, Path(folder)))
        files[_FACTS] = json.dumps(facts, indent=1, sort_keys=True).encode()
        files[_CARD] = card(facts, about).encode()
        if about.recipe is not None:
            files[_RECIPE] = about.recipe.encode()
        add = [
            hub.CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)
            for path, content in files.items()
        ]
        try:
            api.create_repo(name, repo_type="dataset", private=private, exist_ok=True)
            old = _old_samples(api, hub, name, revision, keep=files)
            commit = api.create_commit(
                name,
                [*add, *(hub.CommitOperationDelete(path_in_repo=path) for path in old)],
                commit_message=f"Samples of {store.fingerprint[:8]}, by penstock",
                repo_type="dataset",
                revision=revision,
            )
        except Exception as error:  # of any type: httpx's, huggingface_hub's, ValueError
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise StoreError(
                f"push_to_hub to {name} failed: {reason}; log in with `hf auth login` or set HF_TOKEN, and push again: nothing is there "
                f"before all of it is"
            ) from error
    _log.info("pushed %s to %s, commit %s", store.describe(), name, commit.oid)
    return str(commit.oid)


def load_store(name: str, *, revision: str | None, **options: Any) -> "Store":
    """Return the store that was pushed under this name.  options: of `penstock.prepare`, such as tokenizer and cache_dir."""
    from penstock.api import prepare
    from penstock.places.files import read

    repository, _, at = name.partition("@")
    where = f"{repository}@{revision or at}" if revision or at else repository
    if not _NAME.fullmatch(repository):
        raise StoreError(f"{name!r} is not the name of a data set on the hub, expected 'org/name'")
    try:
        facts = json.loads(read(f"hf://datasets/{where}/{_FACTS}"))
    except (SourceError, ValueError) as error:
        raise StoreError(
            f"{where}: no store that push_to_hub has made ({error}); data sets of other tools are read with penstock.prepare"
        ) from error
    if facts.get("version") != _VERSION:
        raise StoreError(
            f"{where}: {_FACTS} is of version {facts.get('version')!r}, and this release reads {_VERSION}; use a newer release"
        )
    store = prepare(
        f"hf://datasets/{where}/data/*.parquet",
        template="pretokenized",
        mask_key="loss_mask",
        vocab_size=facts["vocab_size"],
        name=repository.partition("/")[2],
        **options,
    )
    _compare(store, facts, where)
    return store


def _compare(store: "Store", facts: dict[str, Any], where: str) -> None:
    """Refuse samples that are not those that were pushed, and a tokenizer that did not make them."""
    counts = store.wait().counts
    found = {"samples": counts.samples, "tokens": counts.tokens, "trained": counts.trained}
    expected = {name: facts["counts"][name] for name in found}
    if found != expected:
        raise StoreError(
            f"{where}: found {found}, and {_FACTS} says {expected}: its files were changed; choose a revision that was pushed whole"
        )
    tokenizer = tokenizer_of(store.template)
    made_with = facts["tokenizer"]["digest"]
    if tokenizer is not None and made_with is not None and tokenizer.digest != made_with:
        raise StoreError(
            f"{where}: these samples were made with another tokenizer ({facts['tokenizer']['name'] or made_with[:12]}) than {tokenizer!r}; "
            f"pass that one, or none"
        )


def _write_samples(store: "Store", folder: Path) -> dict[str, Path]:
    """Write Parquet files of all samples, without dropped records; return them by their names in the repository."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts: list[list[int]] = [[]]
    size = 0
    for shard in range(store.num_shards):
        tokens = int(store.tokens(shard).offsets[-1])
        if parts[-1] and size + tokens > _MOST_TOKENS:
            parts.append([])
            size = 0
        parts[-1].append(shard)
        size += tokens
    schema = store.schema.to_arrow()
    files = {}
    for number, shards in enumerate(parts):
        path = folder / f"{number}.parquet"
        names = ["input_ids", "loss_mask"]
        with pq.ParquetWriter(path, pa.schema([schema.field(name) for name in names])) as out:
            for shard in shards:
                opened = store.tokens(shard)
                table = pa.Table.from_batches([opened.batch], schema).select(names)
                kept = np.flatnonzero(np.diff(opened.offsets))
                out.write_table(table if len(kept) == len(table) else table.take(kept))
        files[f"data/train-{number:05d}-of-{len(parts):05d}.parquet"] = path
    return files


def _old_samples(
    api: Any, hub: Any, name: str, revision: str | None, keep: Mapping[str, Any]
) -> list[str]:
    """Return files of an earlier push that this one does not replace, and that a reader would take for samples of this one."""
    try:
        found = api.list_repo_files(name, repo_type="dataset", revision=revision)
    except hub.errors.RevisionNotFoundError:
        return []
    is_old = re.compile(r"data/train-\d+-of-\d+\.parquet|" + re.escape(_RECIPE))
    return [path for path in found if is_old.fullmatch(path) and path not in keep]


def _facts(store: "Store", about: About) -> dict[str, Any]:
    """Return what `load` needs and compares."""
    counts = store.counts
    tokenizer = tokenizer_of(store.template)
    lengths = np.asarray(store.lengths)
    lengths = lengths[lengths > 0]
    return {
        "version": _VERSION,
        "fingerprint": store.fingerprint,
        "vocab_size": store.vocab_size,
        "template": str(store.template.identity().get("template", type(store.template).__name__)),
        "tokenizer": {
            "name": about.tokenizer,
            "digest": None if tokenizer is None else tokenizer.digest,
        },
        "counts": {
            "records": counts.rows,
            "samples": counts.samples,
            "tokens": counts.tokens,
            "trained": counts.trained,
            "dropped": {reason: part.count for reason, part in counts.dropped.items()},
        },
        "lengths": {
            "shortest": int(lengths.min()),
            "mean": round(float(lengths.mean()), 1),
            "longest": int(lengths.max()),
        },
        "license": about.license,
        "source_licenses": dict(about.source_licenses),
    }


def card(facts: Mapping[str, Any], about: About) -> str:
    """Return the text of README.md."""
    counts = facts["counts"]
    size = int(np.searchsorted(_SIZES, counts["samples"], side="right"))
    head = ["---"]
    if about.license is not None:
        head.append(f"license: {json.dumps(about.license)}")
    head += [
        f"pretty_name: {json.dumps(about.title)}",
        "tags: [penstock, tokenized]",
        f"size_categories: [{json.dumps((*_SIZE_NAMES, 'n>1B')[size])}]",
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: train",
        "    path: data/*.parquet",
        "---",
    ]
    dropped = ", ".join(f"{reason} {number:,}" for reason, number in counts["dropped"].items())
    tokenizer = facts["tokenizer"]
    shown = f"`{tokenizer['name']}`" if tokenizer["name"] else "not named by who pushed it"
    digest = f", digest `{tokenizer['digest']}`" if tokenizer["digest"] else ""
    trained = 100 * counts["trained"] / max(counts["tokens"], 1)
    lengths = facts["lengths"]
    lines = [
        f"# {about.title}",
        "",
        "Samples of tokens with a loss mask, prepared with penstock. A row is a sample: `input_ids`, and `loss_mask`, which says "
        "which of them are trained. Samples are whole: neither cut, packed nor padded.",
        "",
        "| | |",
        "|---|---|",
        f"| records read | {counts['records']:,} |",
        f"| samples | {counts['samples']:,} |",
        f"| records without a sample | {dropped or 'none'} |",
        f"| tokens | {counts['tokens']:,}, of which {counts['trained']:,} ({trained:.1f} %) are trained |",
        f"| tokens of a sample | {lengths['shortest']:,} to {lengths['longest']:,}, {lengths['mean']:,} on average |",
        f"| tokenizer | {shown}, {facts['vocab_size']:,} ids{digest} |",
        f"| template | {facts['template']} |",
        f"| fingerprint of the store | `{facts['fingerprint']}` |",
        "",
        "## How to load it",
        "",
        "```python",
        "import penstock as ps",
        "from penstock.store import Store",
        "",
        f"store = Store.load_from_hub({about.title!r})",
        "loader = ps.Loader(store, batch_size=8, max_length=4096)",
        "```",
        "",
        "In a recipe:",
        "",
        "```yaml",
        f"data: {about.title}",
        "template: pretokenized",
        f"vocab_size: {facts['vocab_size']}",
        "```",
        "",
        f'With `datasets`: `load_dataset({about.title!r}, split="train")`.',
        "",
        "## Licence",
        "",
        f"Of this data set: {about.license or 'not stated by who pushed it. Ask before you use it'}.",
        *_licenses(about.source_licenses),
        "",
        "## How it was made",
        "",
    ]
    if about.recipe is None:
        lines.append("The recipe was not pushed.")
    else:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", about.recipe)), default=0))
        lines += [f"`{_RECIPE}`:", "", f"{fence}yaml", about.recipe.rstrip("\n"), fence]
    return "\n".join(("\n".join(head), *lines, ""))


def _licenses(licenses: Mapping[str, str]) -> list[str]:
    """Return a table of the licences of what the samples were made of."""
    if not licenses:
        return []
    rows = [f"| {_cell(name)} | {_cell(license)} |" for name, license in licenses.items()]
    return [
        "",
        f"Of {plural(len(rows), 'source')}:",
        "",
        "| source | licence |",
        "|---|---|",
        *rows,
    ]


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise StoreError(
            "push_to_hub needs huggingface_hub; run: pip install 'penstock[hf]'"
        ) from error
    return huggingface_hub
