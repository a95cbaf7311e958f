"""The template of a prompt with judged steps, for a model that rewards each step: trl calls it stepwise supervision."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np

from penstock.errors import TemplateError
from penstock.templates.fields import kind, text_under, value_under
from penstock.templates.judged import as_label
from penstock.templates.samples import read_each
from penstock.templates.text import AddEos, PlainText
from penstock.templates.tokenizer.byte_offsets import borders
from penstock.types import STEP_LABELS, Record, Samples, Values

_Steps = tuple[list[str], list[bool]]  # the prompt and its steps; the label of each step


@dataclass(kw_only=True, eq=False, repr=False)
class StepwiseTemplate(PlainText):
    """prompt, then each step of `completions` and a separator.  The last token of each carries the step's label, 0 or 1.

    Prompt, steps and separator are encoded apart, so that a step ends where a token ends.  No EOS by default: the last step ends with
    its separator.
    """

    version = 1
    columns = (STEP_LABELS,)

    input_key: Annotated[str, "column with the prompt"] = "prompt"
    completions_key: Annotated[str, "column with the list of steps"] = "completions"
    labels_key: Annotated[str, "column with the labels of the steps"] = "labels"
    separator: Annotated[str, "text after each step"] = "\n"
    eos: AddEos = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eos is not False:
            raise TemplateError(f"eos={self.eos!r} has no effect: the separator ends each judged step; leave it out")

    def _own_identity(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in ("input_key", "completions_key", "labels_key", "separator")}
        return {"template": "stepwise", **options}

    def _read(self, record: Record) -> _Steps:
        prompt = text_under(record, self.input_key, "input_key")
        steps = value_under(record, self.completions_key, "completions_key", expected="a list of steps")
        labels = value_under(record, self.labels_key, "labels_key", expected="a list of true and false")
        for key, value in ((self.completions_key, steps), (self.labels_key, labels)):
            if not isinstance(value, list | tuple):
                raise TemplateError(f"key {key!r} is {kind(value)}, expected a list")
        if len(steps) != len(labels):
            raise TemplateError(f"{len(steps)} steps and {len(labels)} labels, expected one label for each step")
        for place, step in enumerate(steps):
            if not isinstance(step, str):
                raise TemplateError(f"{self.completions_key}[{place}] is {kind(step)}, expected text")
        found = [as_label(label, f"{self.labels_key}[{place}]") for place, label in enumerate(labels)]
        return [prompt, *steps], found

    def _encode(self, records: Sequence[Record]) -> Samples:
        read = read_each(self._read, records)
        ids, offsets = self._encoded([text for texts, _ in read for text in texts], [len(texts) for texts, _ in read])
        (end, _), begin = self.tokenizer.encode([self.separator]), np.array(self._ends.prefix, np.uint32)
        pieces = iter([ids[start:stop] for start, stop in pairwise(offsets.tolist())])
        tokens, labels = [np.zeros(0, np.uint32)], [np.zeros(0, np.int8)]
        lengths = []
        for _, judged in read:
            own = [np.concatenate((begin, next(pieces)))]
            marks = [np.full(len(own[0]), STEP_LABELS.fill, np.int8)]
            for label in judged:
                own.append(np.concatenate((next(pieces), end)))
                marks.append(np.full(len(own[-1]), STEP_LABELS.fill, np.int8))
                marks[-1][-1:] = label
            lengths.append(sum(map(len, own)))
            tokens += own
            labels += marks
        marked = np.concatenate(labels)
        return Samples(
            input_ids=np.concatenate(tokens),
            loss_mask=marked != STEP_LABELS.fill,
            offsets=borders(lengths),
            columns={STEP_LABELS.name: Values(marked)},
        )

    def _encoded(self, texts: list[str], counts: list[int]) -> Any:
        """Ids and offsets of all texts; an error names the record that holds the text."""
        try:
            return self.tokenizer.encode(texts, special=self.special_in_text)
        except TemplateError as error:
            owners = np.repeat(np.arange(len(counts)), counts)
            raise TemplateError(
                str(error), record=None if error.record is None else int(owners[error.record])
            ) from error
