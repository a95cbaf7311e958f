"""Write a recipe for data: find the files, the template, the lengths in tokens, and a max_length that loses next to nothing.

Values that were found are written as keys, defaults as comments.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.api import complete_options, open_for_prepare
from penstock.cache import open_cache
from penstock.errors import BadRecord, SourceError, TemplateError
from penstock.places.files import with_home
from penstock.recipe.document import data_set_name
from penstock.recipe.keys import keys, option_doc
from penstock.recipe.recipe import Recipe, dump, relative
from penstock.recipe.splits import Splits, eval_files, find_splits, short_places
from penstock.report.numbers import length_numbers
from penstock.report.sampling import encode_rows, lost_share, read_rows, sensible_length
from penstock.sources import RowAccess, open_source
from penstock.sources.splits import split_of
from penstock.templates import Detection, detect, open_template, open_tokenizer
from penstock.templates.registry import uses_chat
from penstock.templates.shapes import shapes
from penstock.words import escape, plural, size, spread

_TEMPLATE = Path(__file__).with_suffix(".txt")
VARIABLE = "TOKENIZER"  # environment variable that a recipe without a tokenizer reads it from

_DETECT_ROWS = 200
_TOKENS_PER_BATCH = 32_768
_MOST_NAMED = 6  # files named in one line
_CHARACTERS = 4  # per token, without a tokenizer
_COMMENTS = {  # in place of the documentation of these keys
    "tokenizer": "",
    "template": "`penstock show` shows a record as a sample",
    "max_length": "tokens per row; `penstock stats` compares others",
}
_DEFAULTS_SHOWN = ("packing", "on_overlong", "shuffle", "seed", "epochs", "last_step", "output")

# What one record of a text file is.  Each record ends with an end-of-text token, so this decides where a model learns to stop.
_RECORDS = ("line", "paragraph", "file")
_SAMPLED = 400  # records measured for each choice
_MOST_CHARACTERS = (
    200_000  # of a record that are encoded; the tokens of a longer one are estimated from them
)
_MOST_READ = 20_000_000  # characters measured for each choice
_LONG_LINE = 128  # tokens: a line of this length is a whole document
_SEVERAL = 1.5  # lines: a longer paragraph is more than a line
_SHORT_FILE = 32_768  # tokens: one of several files of up to this length is a document


class Draft:
    """What was found in the data, and the recipe for it.  `penstock init --json` prints the public attributes.

    place: files, globs or folders.  given: keys of a recipe.
    """

    def __init__(
        self,
        place: list[str],
        *,
        rows: int,
        given: dict[str, Any],
        tokenizer: str | None = None,
        template: str | None = None,
        cache_dir: str | None = None,
    ) -> None:
        self.settings = dict(Recipe.of(place, **given).settings)
        given_tokenizer = self.settings.pop("tokenizer", None)
        given_template = self.settings.pop("template", None)
        self._tokenizer_path = tokenizer or given_tokenizer
        self._tokenizer = (
            None if self._tokenizer_path is None else open_tokenizer(self._tokenizer_path)
        )
        self.model_max_length = (
            None if self._tokenizer is None else self._tokenizer.model_max_length
        )
        self._cache = open_cache(cache_dir or self.settings.get("cache_dir"))
        self.notes: list[str] = []
        splits = find_splits(place) if "split" not in self.settings else None
        self._source = source = self._open_training_data(place, splits)
        self.shape = source.format
        self.files = source.files
        self.num_rows = len(source)
        self.num_bytes = source.num_bytes
        self._choose_template(template or given_template)
        self._sample(rows)
        self.eval_sets = [] if splits is None else self._find_eval_sets(splits)
        self._choose_length()

    def facts(self) -> dict[str, Any]:
        """What was found, for JSON."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def _open_training_data(self, place: list[str], splits: Splits | None) -> RowAccess:
        """Open the files to train on, and note their path and name; of text files, choose what one record is."""
        named_places = place
        files_of_split = set[str]()
        places = place
        if splits is not None:
            _expect_training_data(place, splits)
            named_places = splits.named
            files_of_split = set(splits.train)
            places = [*splits.named, *short_places(splits.train, splits.folders)]
            if splits.others:
                self.notes.append(
                    f"not used, because the name says neither train nor eval: {_names(splits.others)}"
                )
        self.path: str | list[str] = places[0] if len(places) == 1 else places
        self.name = data_set_name(self.path)
        source = self._open(self.path)
        # Files of a training split are not named for evaluation; those of named places may be.
        named_files = [file for file in source.files if file not in files_of_split]
        self._note_eval_files(named_places, named_files)

        options = self.settings.get("options", {})
        if source.format != "text" or "record" in options:
            return source
        record = self._choose_record(len(source.files))
        self.settings["options"] = {**options, "record": record}
        return self._open(self.path)

    def _open(self, path: str | list[str], **options: Any) -> RowAccess:
        given = {key: value for key, value in self.settings.items() if keys()[key].room == "open"}
        options = {**given.pop("options", {}), **given, **options}
        source = open_for_prepare(path, self._cache, self.name, options, self.settings)
        assert isinstance(source, RowAccess)
        return source

    def _note_eval_files(self, places: list[str], files: list[str]) -> None:
        """Name the files that are trained on although their names are those of data for evaluation."""
        eval_names = eval_files(places, files)
        if not eval_names:
            return
        paths = [place.partition("@[")[0].rstrip("/") for place in places]
        given_names = {os.path.basename(path) for path in paths}  # noqa: PTH119
        first_parts = {name.partition("/")[0] for name in eval_names}
        is_named = first_parts <= given_names and all(map(split_of, first_parts))
        why = (
            "because you named it"
            if is_named
            else "init keeps such files apart if it is given their folder"
        )
        self.notes.append(
            f"note: named like data for evaluation, but trained on: {_few(eval_names)} ({why})"
        )

    def _choose_record(self, num_files: int) -> str:
        """Choose what one record of a text file is, by the median tokens of each choice."""
        sources = {name: self._open(self.path, record=name) for name in _RECORDS}
        medians = {name: self._median_tokens(source) for name, source in sources.items()}
        has_blank_lines = len(sources["paragraph"]) > len(sources["file"])
        chosen = "line"
        if medians["line"] < _LONG_LINE:
            if num_files > 1 and medians["file"] <= _SHORT_FILE:
                chosen = "file"
            elif has_blank_lines and medians["paragraph"] > _SEVERAL * medians["line"]:
                chosen = "paragraph"
        listed = ", ".join(f"{name} {tokens:,}" for name, tokens in medians.items())
        self.notes.append(
            f"one record per {chosen} (option record); median tokens per record: {listed}"
        )
        return chosen

    def _median_tokens(self, source: RowAccess) -> int:
        tokens: list[float] = []
        num_read = 0
        for row in spread(len(source), _SAMPLED):
            for record in read_rows(source, [row])[1]:  # one by one: a file may be large
                text = record["text"]
                cut = record["text"][:_MOST_CHARACTERS]
                num_read += len(text)
                found = (
                    len(cut) / _CHARACTERS
                    if self._tokenizer is None
                    else len(self._tokenizer.encode([cut])[0])
                )
                tokens.append(found * max(len(text), 1) // max(len(cut), 1))
            if num_read > _MOST_READ:
                break
        if not tokens:  # too long to be read
            return (source.num_bytes or 0) // max(len(source), 1) // _CHARACTERS
        return int(np.median(tokens))

    def _choose_template(self, template: str | None) -> None:
        """Choose the template that fits sampled records, unless it is given; and its options."""
        self._read_sampled_rows()
        options = self._take_template_options()
        if template:
            count = len(self._records)
            detection = Detection(
                chosen=template, runner_up=None, scores={template: count}, num_rows=count
            )
            why = f"template: {template}, as you asked"
        else:
            detection = detect(self._records, options)
            why = detection.why
        self.template = detection.chosen
        self.runner_up = detection.runner_up
        self.why = why
        self.options = self._with_chat(detection, options)
        self.choices = self._chat_choices()

    def _read_sampled_rows(self) -> None:
        """Read the records that the template is found from; refuse data of which none can be read."""
        sampled = spread(self.num_rows, _DETECT_ROWS)
        _, self._records, self._bad = read_rows(self._source, sampled)
        if not self.num_rows:
            raise TemplateError(
                f"{', '.join(self.files) or self.name}: no records to sample; give data that has some"
            )
        if not self._records:
            _, reason = self._bad[0]
            rows = plural(len(self._bad), "sampled record")
            raise BadRecord(f"none of {rows} can be read; the first: {reason}")

    def _take_template_options(self) -> dict[str, Any]:
        """Move the given options of templates out of the settings: the recipe writes them next to the template."""
        names = [
            key for key in self.settings if keys()[key].room == "template" and key != "fan_out"
        ]
        return {name: self.settings.pop(name) for name in names}

    def _chat_choices(self) -> list[str]:
        """Say for two-sided records whether the chat template is used, and how to choose otherwise."""
        if "chat" not in self.options or self._tokenizer is None:
            return []
        if self.options["chat"]:
            return [
                "chat: true: both sides are rendered by the chat template; set chat: false for plain text"
            ]
        plain = "chat: false: both sides are plain text"
        if not self._tokenizer.chat_templates:
            return [plain]
        return [f"{plain}; set chat: true to render them with the chat template"]

    def _with_chat(self, detection: Detection, options: dict[str, Any]) -> dict[str, Any]:
        """Options of the template, found and given; for two-sided records also whether the chat template is used."""
        made = {**detection.options, **options}
        shape = shapes().get(detection.chosen)
        if shape is not None and shape.reads is not None and shape.template is not None:
            made.setdefault("chat", uses_chat(detection.chosen, self._tokenizer, made))
        return made

    def _sample(self, rows: int) -> None:
        """Measure lengths in tokens; without a tokenizer they are estimated from characters."""
        source = self._source
        bad = self._bad
        refused: list[tuple[int, str]] = []
        dropped: dict[str, list[int]] = {}
        self.trained_share: float | None = None
        self.is_estimate = self._tokenizer is None and self.template != "pretokenized"
        if self.is_estimate:
            sizes = [max(_characters(record) // _CHARACTERS, 1) for record in self._records]
            self._lengths = self._trained = np.array(sizes, np.int64)
            self.looked = len(self._records) + len(bad)
        else:
            if self._tokenizer is None and "vocab_size" not in self.options:
                key = self.options.get("input_key", "input_ids")
                ids = (source[row].get(key, ()) for row in spread(self.num_rows, rows))
                self.options["vocab_size"] = (
                    max((int(max(some)) for some in ids if len(some)), default=0) + 1
                )
            options = complete_options(source, self.template, self._tokenizer, self.options)
            found = encode_rows(
                source, open_template(self.template, self._tokenizer, options), at_most=rows
            )
            self._lengths = found.longest
            self._trained = found.trained
            self.looked = found.looked
            self.trained_share = int(found.trained.sum()) / found.tokens if found.tokens else None
            bad = found.bad
            refused = found.refused
            dropped = found.dropped
        self.unreadable = len(bad)
        of = f"of {self.looked:,} sampled records"
        self.problems = []
        if bad:
            self.problems.append(
                f"{len(bad):,} {of} cannot be read; fix them, or set on_bad: skip: {bad[0][1]}"
            )
        if refused:
            row, why = refused[0]
            self.problems.append(
                f"{len(refused):,} {of} give an error in the template: {source.locate(row)}: {why}"
            )
        for why, at in dropped.items():
            self.problems.append(
                f"{len(at):,} {of} are dropped: {why} (first: {source.locate(at[0])})"
            )
        if not len(self._lengths):
            raise TemplateError(
                f"{self.name}: none of the sampled records gives a sample: {'; '.join(self.problems)}"
            )
        self.lengths = length_numbers(self._lengths)

    def _find_eval_sets(self, splits: Splits) -> list[dict[str, Any]]:
        """The files of the other splits; if their records have another format, with their own template."""
        made = []
        for name, files in splits.eval_sets.items():
            own: dict[str, Any] = {}
            source = open_source(files, cache=self._cache)
            if source.format != self.shape:
                own["options"] = {}
            elif self.settings.get("options"):
                source = self._open(files)
            _, records, _ = read_rows(source, spread(len(source), _DETECT_ROWS))
            try:
                detection = detect(records, {}) if records else None
            except TemplateError as error:
                self.notes.append(f"eval set {name}: {error}")
                detection = None
            if detection is not None and detection.chosen != self.template:
                own |= {"template": detection.chosen, **self._with_chat(detection, {})}
            places = short_places(files, splits.folders)
            path = places[0] if len(places) == 1 else places
            made.append(
                {"name": name, "path": path, "num_rows": len(source), "files": files, "own": own}
            )
        return made

    def _choose_length(self) -> None:
        if self.template == "text":
            self.settings.setdefault("packing", "concat")
        if self.template in shapes() and not shapes()[self.template].is_packed:
            self.settings.setdefault("packing", "none")
        is_cut = self.settings.get("packing") == "concat"  # then nothing is lost
        could_lose = np.zeros_like(self._trained) if is_cut else self._trained
        num_sequences = 2 if self.template == "preference" else 1  # in a row
        most = None if self.model_max_length is None else num_sequences * self.model_max_length
        chosen = sensible_length(self._lengths, could_lose, most)
        self.max_length: int = self.settings.pop("max_length", None) or chosen
        least = (
            2 if self.template == "kto" else 1
        )  # each prompt is compared with another row's answer
        self.batch_size = self.settings.pop("batch_size", None) or max(
            least, min(8, _TOKENS_PER_BATCH // self.max_length)
        )
        self.lost = lost_share(self._lengths, self._trained, self.max_length)

    @property
    def findings(self) -> list[str]:
        """What was found, as sentences."""
        on_disk = "" if self.num_bytes is None else f", {size(self.num_bytes)}"
        unreadable = f", {self.unreadable:,} of them unreadable" if self.unreadable else ""
        how = f"{'estimated from characters, ' if self.is_estimate else ''}{plural(self.looked, 'record')} sampled{unreadable}"
        trained = (
            ""
            if self.trained_share is None
            else f"; {self.trained_share:.1%} of the tokens are trained on"
        )
        words = {"truncate": "cut", "split": "split", "error": "an error"}
        lost = (
            f": {self.lost.describe(words.get(str(self.settings.get('on_overlong')), 'dropped'))}"
        )
        if self.settings.get("packing") == "concat":
            lost = ", packing concat: texts are joined and cut into rows, nothing is lost"
        tokens = (
            f"median {self.lengths.p50:,}, p99 {self.lengths.p99:,}, longest {self.lengths.max:,}"
        )
        return [
            f"{self.name}: {self.shape or 'records'}, {_rows_in(self.num_rows, self.files)}{on_disk}",
            *(
                f"eval set {each['name']}: {_rows_in(each['num_rows'], each['files'])}"
                for each in self.eval_sets
            ),
            *self.notes,
            self.why,
            *self.choices,
            f"tokens per {'pair of sequences' if self.template == 'preference' else 'sample'}: {tokens} ({how}){trained}",
            f"max_length {self.max_length:,}{lost}",
            *self.problems,
        ]

    def text(self, output: Path) -> str:
        """The recipe for the file `output` as commented YAML, with paths relative to its folder."""
        settings = {"max_length": self.max_length, "batch_size": self.batch_size, **self.settings}
        data = {"data": _path(self.path, output)}
        if options := settings.pop("options", None):
            data["options"] = options
        template = [
            self._tokenizer_line(output),
            _lines({"template": self.template, **self.options}, self.template),
        ]
        if self.template in ("messages", "sharegpt", "alpaca") and "train_on" not in self.options:
            template.append(f"# {_lines({'train_on': 'assistant'})}")
        sets: dict[str, Any] = {}
        for each in self.eval_sets:
            path = _path(each["path"], output)
            sets[each["name"]] = {"path": path, **each["own"]} if each["own"] else path
        defaults = [
            _lines({key: keys()[key].default}) for key in _DEFAULTS_SHOWN if key not in settings
        ]
        return _TEMPLATE.read_text(encoding="utf-8").format(
            name=escape(json.dumps(output.name, ensure_ascii=False)),
            findings="\n".join(f"#   {escape(finding)}" for finding in self.findings),
            data=_lines(data),
            template="\n".join(template),
            settings=_lines(settings),
            defaults="\n".join(f"# {line}" for line in defaults),
            part=next(iter(sets), "held_out"),
            eval=_lines({"eval": sets}) if sets else "# eval:\n#   held_out: held_out.jsonl",
        )

    def _tokenizer_line(self, output: Path) -> str:
        if self._tokenizer_path is not None:
            is_file = with_home(self._tokenizer_path).exists()  # else a name on the hub
            return _lines(
                {
                    "tokenizer": _path(self._tokenizer_path, output)
                    if is_file
                    else self._tokenizer_path
                }
            )
        if self.template == "pretokenized":
            return "# tokenizer: …  # only to read samples as text; vocab_size is the largest sampled id, plus one"
        return f"tokenizer: ${{{VARIABLE}}}  # {keys()['tokenizer'].doc}; or set the variable {VARIABLE}"


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_characters, parts))


def _rows_in(num_rows: int, files: Sequence[str]) -> str:
    listed = f" ({_names(files)})" if files else ""
    return f"{plural(num_rows, 'record')} in {plural(len(files), 'file')}{listed}"


def _expect_training_data(place: list[str], splits: Splits) -> None:
    """Refuse folders in which every file belongs to an evaluation set."""
    if splits.train or splits.named:
        return
    listed = "; ".join(f"{name}: {_names(files)}" for name, files in splits.eval_sets.items())
    first_set = next(iter(splits.eval_sets.values()))
    example = " ".join(first_set[:2])
    if len(first_set) > 2:
        example += " …"
    raise SourceError(
        f"{', '.join(place)}: every file has the name of an evaluation set ({listed}), so none is left to train on; "
        f"to train on some of them, name the files: penstock init {example}",
        code="no_training_data",
    )


def _names(files: Sequence[str]) -> str:
    return _few([os.path.basename(file.rstrip("/")) for file in files])  # noqa: PTH119


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _lines(settings: dict[str, Any], template: str = "") -> str:
    """Keys and values as YAML, each with a comment.  template: whose options they are."""
    made = []
    for name, value in settings.items():
        is_short = name in keys() and (name == "options" or not isinstance(value, dict | list))
        comment = _COMMENTS.get(name, option_doc(name, template)) if is_short else ""
        made.append(
            dump({name: value}, width=10_000).rstrip("\n") + (f"  # {comment}" if comment else "")
        )
    return "\n".join(made)


def _path(place: str | list[str], output: Path) -> Any:
    if isinstance(place, list):
        return [_path(each, output) for each in place]
    if "://" in place:
        return place
    absolute = os.path.abspath(os.path.expanduser(place))  # noqa: PTH100, PTH111 - may be a glob
    return relative(absolute, os.path.abspath(output.parent))  # noqa: PTH100
