"""What plugs into the core: names, each with the module that is imported when the name is first needed.

The core asks for a plugin by its group and name.  It never imports an extra itself, and it works without the folder `extras`: then the
names of that folder do not exist.  Other packages add plugins with entry points of the same groups:

    [project.entry-points."penstock.formats"]
    ledger = "my_package.ledger:LEDGER"

What an object of a group must be is said where the group is used; CONTRIBUTING.md has the list.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.errors import PluginError

# group → name → "module:attribute", for the plugins of this package's own extras.
_OF_EXTRAS: Mapping[str, Mapping[str, str]] = {
    "engines": {"ray": "penstock.extras.ray.engine:RayEngine"},
    "places": {
        "s3": "penstock.extras.remote.object_store:open_object_place",
        "gs": "penstock.extras.remote.object_store:open_object_place",
        "az": "penstock.extras.remote.object_store:open_object_place",
        "http": "penstock.extras.remote.object_store:open_object_place",
        "https": "penstock.extras.remote.object_store:open_object_place",
        "hf": "penstock.extras.remote.hub:open_hub_place",
    },
    "hubs": {"hf": "penstock.extras.remote.hub_source:HUB"},
    "caches": {
        "s3": "penstock.extras.remote.cache:RemoteCache",
        "gs": "penstock.extras.remote.cache:RemoteCache",
        "az": "penstock.extras.remote.cache:RemoteCache",
    },
    "exports": {
        "megatron": "penstock.extras.formats.to_megatron:write_megatron",
        "hub": "penstock.extras.remote.pushed:push_store",
        "from_hub": "penstock.extras.remote.pushed:load_store",
    },
    "formats": {
        "megatron": "penstock.extras.formats.table:MEGATRON",
        "token_bin": "penstock.extras.formats.table:TOKEN_BIN",
        "datatrove": "penstock.extras.formats.table:DATATROVE",
        "mds": "penstock.extras.formats.table:MDS",
        "litdata": "penstock.extras.formats.table:LITDATA",
        "parquet_chunks": "penstock.extras.formats.table:PARQUET_CHUNKS",
        "pt": "penstock.extras.formats.table:PT",
        "yaml": "penstock.extras.formats.table:YAML",
        "webdataset": "penstock.extras.media.table:WEBDATASET",
        "media_folder": "penstock.extras.media.table:MEDIA_FOLDER",
        "sample_folder": "penstock.extras.media.table:SAMPLE_FOLDER",
        "agent_trace": "penstock.extras.traces.table:AGENT_TRACE",
        "claude_code": "penstock.extras.traces.table:CLAUDE_CODE",
        "codex": "penstock.extras.traces.table:CODEX",
        "pi": "penstock.extras.traces.table:PI",
        "droid": "penstock.extras.traces.table:DROID",
        "hermes": "penstock.extras.traces.table:HERMES",
        "atif": "penstock.extras.traces.table:ATIF",
        "harmony": "penstock.extras.traces.table:HARMONY",
        "swe_smith": "penstock.extras.traces.table:SWE_SMITH",
        "harbor": "penstock.extras.traces.table:HARBOR",
    },
    "values": {"media": "penstock.extras.media.memory_media:IMAGES"},
    "templates": {
        "preference": "penstock.extras.trainers.shapes:PREFERENCE",
        "kto": "penstock.extras.trainers.shapes:KTO",
        "stepwise": "penstock.extras.trainers.shapes:STEPWISE",
        "prompt": "penstock.extras.rl.template:PROMPT",
    },
    "template_steps": {"media": "penstock.extras.media.chat_step:MEDIA_STEP"},
    "objectives": {
        "fim": "penstock.extras.objectives.table:FIM",
        "span_corruption": "penstock.extras.objectives.table:SPAN_CORRUPTION",
        "masked_diffusion": "penstock.extras.objectives.table:MASKED_DIFFUSION",
        "bpe_dropout": "penstock.extras.objectives.table:BPE_DROPOUT",
    },
    "kinds": {
        "pairs": "penstock.extras.trainers.sequences:PAIRS_KIND",
        "judged answers": "penstock.extras.trainers.sequences:JUDGED_KIND",
        "judged steps": "penstock.extras.trainers.sequences:STEPS_KIND",
        "prompts": "penstock.extras.trainers.sequences:PROMPTS_KIND",
    },
    "stages": {
        "media": "penstock.extras.media.stage:MEDIA_COLUMN",
        "input_tokens": "penstock.extras.objectives.span_corruption:ENCODER_DECODER",
    },
    "batch_stages": {
        "context_split or future_labels": "penstock.extras.trainers.batch_stage:TRAINER_BATCHES"
    },
    "supplies": {"mirror": "penstock.extras.remote.mirror:MIRROR"},
    "observers": {"trainers": "penstock.extras.trainers.guards:TrainerGuards"},
    "commands": {
        "example": "penstock.extras.example.command:example",
        "import": "penstock.extras.imports.command:import_",
        "losses": "penstock.extras.losses.command:losses",
        "report": "penstock.extras.view.command:report",
        "view": "penstock.extras.view.command:view",
    },
    "checks": {
        "media": "penstock.extras.media.report:check_media",
        "traces": "penstock.extras.traces.report:check_traces",
    },
    "notebook": {
        "RowAccess": "penstock.extras.view.notebook:source",
        "Store": "penstock.extras.view.notebook:store",
        "Sample": "penstock.extras.view.notebook:sample",
        "Batch": "penstock.extras.view.notebook:batch",
        "Loader": "penstock.extras.view.notebook:loader",
        "Plan": "penstock.extras.view.notebook:plan",
        "Counters": "penstock.extras.view.notebook:counters",
    },
    "piece_notes": {"losses": "penstock.extras.losses.command:notes_of_pieces"},
    "reasons": {
        "bad_media": "penstock.extras.media.reasons:MISSING_OR_BROKEN",
        "bad_member": "penstock.extras.media.reasons:BAD_MEMBER",
        "bad_tar": "penstock.extras.media.reasons:BAD_TAR",
        "split_sample": "penstock.extras.media.reasons:SPLIT_SAMPLE",
        "secret": "penstock.extras.traces.reasons:SECRET",
    },
    "reports": {"media": "penstock.extras.media.report:REPORT"},
    "settings": {
        "media": "penstock.extras.media.settings:SETTINGS",
        "remote": "penstock.extras.remote.settings:SETTINGS",
        "rl": "penstock.extras.rl.settings:SETTINGS",
        "trainers": "penstock.extras.trainers.settings:SETTINGS",
    },
}


def names(group: str) -> list[str]:
    """Return the names of a group, those of other packages last.  Nothing is imported."""
    return list(_targets(group))


def modules(group: str) -> list[str]:
    """Return the names of the modules that hold the plugins of a group.  Nothing is imported."""
    return [target.partition(":")[0] for target in _targets(group).values()]


def missing(group: str) -> dict[str, str]:
    """Return the plugins of this package's own extras that are not installed: name → the extra that has it."""
    extras = {name: _extra_of(target) for name, target in _OF_EXTRAS[group].items()}
    return {name: extra for name, extra in extras.items() if not _is_there(extra)}


def is_installed(extra: str) -> bool:
    """Return whether an extra of this package is there, by the name of its folder."""
    return _is_there(f"penstock.extras.{extra}")


def not_installed(group: str, name: str) -> str:
    """Return a clause for an error if this name belongs to an extra that is not installed, or ""."""
    extra = missing(group).get(name)
    if extra is None:
        return ""
    return f"; {name!r} belongs to {extra}, which this installation does not have: install the whole package"


def load(group: str, name: str) -> Any:
    """Return the plugin of this name.  Raises KeyError if there is none, and PluginError if it cannot be imported."""
    return _load(group, name, _targets(group)[name])


def every(group: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the object of every plugin of a group."""
    for name, target in _targets(group).items():
        yield name, _load(group, name, target)


@cache
def _targets(group: str) -> dict[str, str]:
    targets = {
        name: target for name, target in _OF_EXTRAS[group].items() if _is_there(_extra_of(target))
    }
    for name, target in _of_other_packages().get(group, {}).items():
        if name in targets:
            raise PluginError(
                f"two packages have a plugin penstock.{group} of the name {name!r}: {targets[name]} and {target}; "
                f"uninstall one of them, or give it another name"
            )
        targets[name] = target
    return targets


def _extra_of(target: str) -> str:
    """The folder of an extra that a module belongs to: penstock.extras.media of penstock.extras.media.stage:open_media."""
    return ".".join(target.split(".")[:3])


@cache
def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even penstock.extras
        return False


@cache
def _load(group: str, name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        plugin: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"the plugin {name!r} of penstock.{group} is {target}, which cannot be loaded: {error}; install what it needs"
        ) from error
    return plugin


@cache
def _of_other_packages() -> dict[str, dict[str, str]]:
    """Return the entry points of installed packages whose group begins with `penstock.`: group → name → target.

    Reading all metadata with `importlib.metadata` takes 50 ms, which every start would pay.  So the files of entry points are searched
    for the word first, which takes 3 ms, and usually no package has it.
    """
    if not any(_has_our_groups(Path(folder or os.curdir)) for folder in sys.path):
        return {}
    from importlib.metadata import distributions

    groups: dict[str, dict[str, str]] = {}
    for distribution in distributions():
        for point in distribution.entry_points:
            if point.group.startswith("penstock."):
                group = point.group.removeprefix("penstock.")
                groups.setdefault(group, {})[point.name] = point.value
    return groups


def _has_our_groups(folder: Path) -> bool:
    try:
        if not folder.is_dir():
            return False
    except PermissionError:  # nothing can be imported from it either
        return False
    for pattern in ("*.dist-info/entry_points.txt", "*.egg-info/entry_points.txt"):
        for file in folder.glob(pattern):
            if b"[penstock." in file.read_bytes():
                return True
    return False
