"""The template of judged steps, for models that reward each step of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np

from penstock.errors import TemplateError
from penstock.templates.fields import as_label, kind, text_under, value_under
from penstock.templates.samples import owners, read_each, renumbered
from penstock.templates.text import AddEos, PlainText
from penstock.templates.tokenizer.byte_offsets import borders
from penstock.types import STEP_LABELS, Record, Samples, Values


@dataclass(kw_only=True, eq=False, repr=False)
class StepwiseTemplate(PlainText):
    """prompt, then each step of `completions` and a separator, for a model that rewards each step: trl's stepwise supervision.

    The last token of each step carries its label, 0 or 1.  Prompt, steps and separator are encoded apart, so that a step ends where a
    token ends.  No EOS by default: the last step ends with its separator.
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
            raise TemplateError(
                f"eos={self.eos!r} has no effect: the separator ends each judged step; leave it out"
            )

    def _own_identity(self) -> dict[str, Any]:
        options = {
            name: getattr(self, name)
            for name in ("input_key", "completions_key", "labels_key", "separator")
        }
        return {"template": "stepwise", **options}

    def _read(self, record: Record) -> tuple[list[str], list[bool]]:
        """The prompt and its steps, and the label of each step."""
        prompt = text_under(record, self.input_key, "input_key")
        steps = value_under(
            record, self.completions_key, "completions_key", expected="a list of steps"
        )
        labels = value_under(
            record, self.labels_key, "labels_key", expected="a list of true and false"
        )
        for key, value in ((self.completions_key, steps), (self.labels_key, labels)):
            if not isinstance(value, list | tuple):
                raise TemplateError(f"key {key!r} is {kind(value)}, expected a list")
        if len(steps) != len(labels):
            raise TemplateError(
                f"{len(steps)} steps and {len(labels)} labels, expected one label for each step"
            )
        for place, step in enumerate(steps):
            if not isinstance(step, str):
                raise TemplateError(
                    f"{self.completions_key}[{place}] is {kind(step)}, expected text"
                )
        found = [
            as_label(label, f"{self.labels_key}[{place}]") for place, label in enumerate(labels)
        ]
        return [prompt, *steps], found

    def _encode(self, records: Sequence[Record]) -> Samples:
        read = read_each(self._read, records)
        with renumbered(owners([len(texts) for texts, _ in read])):
            ids, offsets = self.tokenizer.encode(
                [text for texts, _ in read for text in texts], special=self.special_in_text
            )
        end, _ = self.tokenizer.encode([self.separator])
        begin = np.array(self._ends.prefix, np.uint32)
        pieces = iter([ids[start:stop] for start, stop in pairwise(offsets.tolist())])
        tokens = [np.zeros(0, np.uint32)]
        marks = [np.zeros(0, np.int8)]
        lengths = []
        for _, labels in read:
            first = len(tokens)
            for label in (None, *labels):  # the prompt has none
                tokens.append(
                    np.concatenate((begin, next(pieces)) if label is None else (next(pieces), end))
                )
                marks.append(np.full(len(tokens[-1]), STEP_LABELS.fill, np.int8))
                marks[-1][-1:] = STEP_LABELS.fill if label is None else label
            lengths.append(sum(map(len, tokens[first:])))
        marked = np.concatenate(marks)
        return Samples(
            input_ids=np.concatenate(tokens),
            loss_mask=marked != STEP_LABELS.fill,
            offsets=borders(lengths),
            columns={STEP_LABELS.name: Values(marked)},
        )
