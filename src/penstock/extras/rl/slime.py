"""Prompts as the data source of slime, or of miles, its fork.

    --data-source-path penstock.extras.rl.slime.PromptsDataSource

reads --prompt-data.  For other data, write a class and name that one instead:

    class Mine(PromptsDataSource):
        def open_prompts(self, args):
            return ps.Prompts(
                "recipe.yaml", repeats=args.n_samples_per_prompt, seed=args.rollout_seed, filter=prompt_filter(args)
            )

The framework does not tell a data source what it trains on; functions of this module do.  Which ones depends on the rollout function:

    the standard one    --rollout-sample-filter-path penstock.extras.rl.slime.mark_trained
                        --rollout-all-samples-process-path penstock.extras.rl.slime.settle
    fully asynchronous  --custom-rollout-log-function-path penstock.extras.rl.slime.log_trained
                        and --dynamic-sampling-filter-path, if you have one, with a function made by drop_filtered
    sft_rollout         none: it trains every sample that it takes

A prompt is done when the framework saves a rollout that trained it.
"""

import copy
import json
import logging
import os
import threading
import weakref
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

try:
    from slime.rollout.data_source import DataSource
    from slime.utils import data as framework_data
    from slime.utils.processing_utils import load_processor, load_tokenizer, process_vision_info
    from slime.utils.types import Sample
except ImportError:
    from miles.rollout.data_source import DataSource
    from miles.utils import data as framework_data
    from miles.utils.processing_utils import load_processor, load_tokenizer, process_vision_info
    from miles.utils.types import Sample

from penstock.cache import open_cache
from penstock.errors import PlanError, PlanMismatch
from penstock.extras.rl.prompts import Prompt, Prompts
from penstock.sources import open_source
from penstock.types import Record

_log = logging.getLogger("penstock")

_MARK = "penstock_trained"  # in the metadata of a sample that slime trains on
_NOT_SELECTED = "not_selected"  # finished, and left out: by a dynamic filter, or enough were there
_SFT_ROLLOUT = "sft_rollout.generate_rollout"  # the end of --rollout-function-path
_FULLY_ASYNC = "fully_async"  # in --rollout-function-path of slime; an argument of miles

# Arguments of the framework that decide what a sample is, and nothing else that a filter would need.
_SAMPLE_ARGUMENTS = (
    "hf_checkpoint",
    "chat_template_path",
    "input_key",
    "label_key",
    "metadata_key",
    "tool_key",
    "multimodal_keys",
    "apply_chat_template",
    "apply_chat_template_kwargs",
    "rollout_max_prompt_len",
)

Group = list[Any]  # of samples, or of lists of them where a rollout made several

_sources: "weakref.WeakSet[PromptsDataSource]" = weakref.WeakSet()  # of this process


class PromptsDataSource(DataSource):  # type: ignore[misc]
    """Groups of samples, one group for each prompt; a group that comes back is given again first, as far as it had come."""

    def __init__(self, args: Any) -> None:
        _refuse_arguments(args)
        self.args = args
        self._maker = SampleMaker(args)
        self._maker.dump(getattr(args, "dump_details", None))
        self.prompts = self.open_prompts(args)
        if self.prompts.epochs is not None or self.prompts.repeats != args.n_samples_per_prompt:
            raise PlanError(
                f"Prompts have epochs={self.prompts.epochs} and repeats={self.prompts.repeats}, expected endless ones (epochs=None) with "
                f"repeats={args.n_samples_per_prompt}, which is n_samples_per_prompt"
            )
        self._warn_of_other_order()
        rollout_function = str(getattr(args, "rollout_function_path", None) or "")
        self._trains_all = rollout_function.endswith(_SFT_ROLLOUT)
        # Groups are in flight from one rollout to the next, so what was not trained is not given back.
        self.is_fully_async = (
            getattr(args, "fully_async", False) or _FULLY_ASYNC in rollout_function
        )
        # Fully asynchronous rollouts take prompts in a thread of their own.
        self._lock = threading.RLock()
        self._held: dict[int, Prompt] = {}  # ordinals that slime has and has not settled
        # Of prompts that came back: slime goes on with their samples.
        self._groups: dict[int, Group] = {}
        self._rounds: dict[int, list[Prompt]] = {}  # rollout id → what it trains
        self._next_round = 0
        self._is_settled = False
        _sources.add(self)

    def open_prompts(self, args: Any) -> Prompts:
        """Return the prompts: those of --prompt-data, in its order, or shuffled with --rollout-shuffle."""
        if args.prompt_data is None:
            raise PlanError(
                "prompt_data is None, expected --prompt-data with a file; or write a class of your own with open_prompts, and return "
                "penstock.Prompts(…) there"
            )
        return Prompts(
            # nulls: the framework keeps those with which Parquet fills up records
            open_source(args.prompt_data, cache=open_cache(None), defaults={"nulls": "keep"}),
            repeats=args.n_samples_per_prompt,
            seed=args.rollout_seed,
            shuffle=args.rollout_shuffle,
            filter=prompt_filter(args),
        )

    def _warn_of_other_order(self) -> None:
        """Say so where arguments ask for another order than a class of the user's has chosen."""
        settings = self.prompts.plan.settings
        asked = {"shuffle": self.args.rollout_shuffle, "seed": self.args.rollout_seed}
        for name, value in asked.items():
            chosen = getattr(settings, name)
            if chosen != value and (name == "shuffle" or settings.shuffle):
                _log.warning(
                    "open_prompts has %s=%s, which is used; the arguments have rollout_%s=%s",
                    name,
                    chosen,
                    name,
                    value,
                )

    # Giving samples, and taking them back

    def get_samples(self, num_samples: int) -> list[Group]:
        """Return a group of samples for each of `num_samples` prompts."""
        with self._lock:
            if self._is_settled:
                # The round is over: what slime neither trained, nor left out, nor gave back was aborted.
                self.prompts.back(list(self._held.values()))
                self._held = {}
                self._is_settled = False
            taken = self._take(num_samples)
            if self._trains_all:
                self._rounds[self._next_round] = taken
                self._next_round = self._next_round + 1
            return [self._groups.pop(prompt.ordinal, []) or self._group(prompt) for prompt in taken]

    def _take(self, count: int) -> list[Prompt]:
        if not count:
            return []
        taken = self.prompts.take(count, to="slime")
        # slime trains whatever it finishes, so these leases must not run out
        self.prompts.accept(taken)
        self._held |= {prompt.ordinal: prompt for prompt in taken}
        return taken

    def _group(self, prompt: Prompt) -> Group:
        try:
            made = self._maker(prompt.record)
            self._maker.check_length(made)
        except PlanError as error:
            raise PlanError(f"{prompt.where}: {error}") from error
        group = []
        for number in range(prompt.repeats):
            sample = copy.deepcopy(made)
            sample.group_index = prompt.ordinal
            sample.index = prompt.ordinal * prompt.repeats + number
            group.append(sample)
        return group

    def add_samples(self, samples: list[Group]) -> None:
        """Take groups back that were aborted, with the tokens that they have."""
        with self._lock:
            for group in samples:
                ordinal = _ordinal(group)
                prompt = self._held.pop(ordinal, None)
                if prompt is None:
                    raise PlanError(
                        f"add_samples: group {ordinal} was not given by this data source, or is settled"
                    )
                self.prompts.back(prompt)
                self._groups[prompt.ordinal] = group

    # Learning what is trained

    def settle(self, finished: Sequence[Group]) -> None:
        """End a round: of the finished groups, those with a mark are trained, and the others are dropped and counted."""
        with self._lock:
            trained: list[Prompt] = []
            left_out: list[Prompt] = []
            for group in finished:
                prompt = self._held.pop(_ordinal(group))
                is_trained = _first_sample(group).metadata.pop(_MARK, False)
                (trained if is_trained else left_out).append(prompt)
            self.prompts.drop(left_out, why=_NOT_SELECTED)
            self._rounds[self._next_round] = trained
            self._next_round = self._next_round + 1
            self._is_settled = True

    def settle_trained(self, rollout_id: int, samples: Iterable[Any]) -> None:
        """Note what a rollout trains.  Other groups stay in flight."""
        with self._lock:
            ordinals = sorted({_ordinal([sample]) for sample in samples})
            unknown = [ordinal for ordinal in ordinals if ordinal not in self._held]
            if unknown:
                raise PlanError(
                    f"log_trained: rollout {rollout_id} trains group {unknown[0]} ({len(unknown):,} of {len(ordinals):,} such groups), "
                    f"which was not given by this data source, or is settled"
                )
            self._rounds[rollout_id] = [self._held.pop(ordinal) for ordinal in ordinals]
            self._next_round = rollout_id + 1

    def drop(self, group: Group) -> None:
        """Drop a group that a dynamic filter leaves out of a fully asynchronous rollout."""
        with self._lock:
            self.prompts.drop(self._held.pop(_ordinal(group)), why=_NOT_SELECTED)

    # Saving

    def save(self, rollout_id: int) -> None:
        """Acknowledge what rollouts up to this one have trained, and save the state next to slime's checkpoint."""
        with self._lock:
            if rollout_id >= self._next_round:
                raise PlanError(
                    f"save: rollout {rollout_id} was not settled, so it is not known what it trained; start slime with {self._functions()}"
                )
            for number in [number for number in self._rounds if number <= rollout_id]:
                trained = self._rounds.pop(number)
                for prompt in trained:
                    self._held.pop(prompt.ordinal, None)
                self.prompts.done(trained)
            file = self._file(self.args.save, rollout_id)
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_suffix(".tmp")
            with temporary.open("w") as out:
                json.dump(self.prompts.state_dict(), out)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(file)

    def _functions(self) -> str:
        """Return the arguments that tell this data source what is trained."""
        if self.is_fully_async:
            return f"--custom-rollout-log-function-path {__name__}.log_trained"
        return (
            f"--rollout-sample-filter-path {__name__}.mark_trained "
            f"--rollout-all-samples-process-path {__name__}.settle"
        )

    def load(self, rollout_id: int | None = None) -> None:
        """Go to the state that was saved with this rollout; all that was not trained then is given again."""
        if self.args.load is None or rollout_id is None or rollout_id < 0:
            return
        file = self._file(self.args.load, rollout_id)
        if not file.exists():
            raise PlanMismatch(
                f"{file} does not exist: rollout {rollout_id} was saved without Prompts; start a new run"
            )
        with self._lock:
            self.prompts.load_state_dict(json.loads(file.read_text()))
            self._held = {}
            self._groups = {}
            self._rounds = {}
            self._next_round = rollout_id + 1
            self._is_settled = False

    @staticmethod
    def _file(folder: str, rollout_id: int) -> Path:
        return Path(folder) / "rollout" / f"penstock_{rollout_id}.json"

    # What the rollout manager asks

    def __len__(self) -> int:
        """Return the number of prompts in an epoch."""
        return self.prompts.prompts_per_epoch

    @property
    def dataset(self) -> "PromptsDataSource":
        """What miles takes the length of, to know how many rollouts --num-epoch means."""
        return self

    def get_buffer_length(self) -> int:
        """Return the number of groups that came back and wait to be given again."""
        return len(self._groups)


def _refuse_arguments(args: Any) -> None:
    """Refuse arguments that would have no effect here, or that need another data source."""
    if not args.rollout_global_dataset:
        raise PlanError(
            "--disable-rollout-global-dataset: this data source is the global dataset, and would not be saved; leave it out"
        )
    if getattr(args, "buffer_filter_path", None) is not None:
        raise PlanError(
            f"--buffer-filter-path {args.buffer_filter_path} has no effect on Prompts: groups that come back are given again first, in "
            f"their order; leave it out"
        )
    if getattr(args, "multi_lora", False):
        raise PlanError(
            "--multi-lora needs a data source with a queue for each adapter, which Prompts are not; leave --data-source-path out"
        )


class SampleMaker:
    """Make the sample of a record as the framework's own Dataset does, from the same arguments."""

    def __init__(self, args: Any) -> None:
        self.args = args
        # slime has no --chat-template-path
        path = getattr(args, "chat_template_path", None)
        options = {} if path is None else {"chat_template_path": path}
        self._tokenizer = load_tokenizer(args.hf_checkpoint, trust_remote_code=True, **options)
        self._processor = load_processor(args.hf_checkpoint, trust_remote_code=True)
        self._has_warned = False

    def __call__(self, record: Record) -> Any:
        """Return a sample without numbers."""
        args = self.args
        row = copy.deepcopy(record)  # the framework changes messages in their place
        for name in ("input_key", "label_key"):
            key = getattr(args, name)
            if key is not None and key not in row:
                raise PlanError(f"the record has {sorted(row)}, expected {name} {key!r}")
        for key in (args.multimodal_keys or {}).values():
            if not isinstance(row.get(key, []), list):
                raise PlanError(f"{key!r} is a {type(row[key]).__name__}, expected a list of media")
        is_conversation = args.apply_chat_template or args.multimodal_keys is not None
        messages = framework_data._build_messages(
            row, args.input_key, is_conversation, args.multimodal_keys
        )
        metadata = row.get(args.metadata_key) or {}
        tools = self._tools(row)
        if tools is not None:
            metadata["tools"] = tools
        multimodal_inputs = None
        if self._processor:
            if not isinstance(messages, list):
                raise PlanError(
                    f"{args.input_key!r} is text, and {args.hf_checkpoint} has a processor, for which the framework expects messages: set "
                    f"--apply-chat-template"
                )
            multimodal_inputs = process_vision_info(messages, self._processor)
        return Sample(
            prompt=self._rendered(messages, tools) if args.apply_chat_template else messages,
            label=None if args.label_key is None else row[args.label_key],
            metadata=metadata,
            multimodal_inputs=multimodal_inputs,
        )

    def _tools(self, row: Record) -> list[Any] | None:
        key = self.args.tool_key
        if key is None or key not in row:
            return None
        tools = row[key]
        if isinstance(tools, str):
            tools = json.loads(tools)
        if not isinstance(tools, list):
            raise PlanError(
                f"tool_key {key!r} has a {type(tools).__name__}, expected a list of tools"
            )
        return tools

    def _rendered(self, messages: list[Any], tools: list[Any] | None) -> str:
        options = {
            "tools": tools,
            "tokenize": False,
            "add_generation_prompt": True,
            **(self.args.apply_chat_template_kwargs or {}),
        }
        # Newer versions of miles render through a function of their own, as its inference server does.
        rendering = getattr(framework_data, "chat_template_utils", None)
        if rendering is None:
            text = self._tokenizer.apply_chat_template(messages, **options)
        else:
            text = rendering.apply_chat_template(messages, tokenizer=self._tokenizer, **options)
        return str(text)

    def is_short(self, sample: Any) -> bool:
        """Whether a prompt has at most --rollout-max-prompt-len tokens.  Messages are not measured, as in the framework."""
        limit = self.args.rollout_max_prompt_len
        if limit is None:
            return True
        if not isinstance(sample.prompt, str):
            if not self._has_warned:
                _log.warning(
                    "--rollout-max-prompt-len %s has no effect on prompts that are messages, as in the framework; set "
                    "--apply-chat-template to have them measured",
                    limit,
                )
                self._has_warned = True
            return True
        return self._num_tokens(sample) <= int(limit)

    def _num_tokens(self, sample: Any) -> int:
        media = sample.multimodal_inputs
        if media and any(value is not None for value in media.values()):
            return len(self._processor(text=sample.prompt, **media)["input_ids"][0])
        return len(self._tokenizer(sample.prompt, add_special_tokens=False)["input_ids"])

    def check_length(self, sample: Any) -> None:
        """Refuse a prompt that the framework's Dataset would have left out."""
        if not self.is_short(sample):
            raise PlanError(
                f"the prompt has {self._num_tokens(sample):,} tokens, expected at most --rollout-max-prompt-len "
                f"{self.args.rollout_max_prompt_len:,}; open Prompts with filter=penstock.extras.rl.slime.prompt_filter(args), which "
                f"leaves such prompts out and counts them"
            )

    def dump(self, folder: str | None) -> None:
        """Save tokenizer and processor for --dump-details, as the framework's data source does."""
        if folder is None:
            return
        self._tokenizer.save_pretrained(Path(folder) / "tokenizer")
        if hasattr(self._processor, "save_pretrained"):
            self._processor.save_pretrained(Path(folder) / "processor")


class RolloutFilter:
    """A filter of Prompts: keeps records whose prompt has at most --rollout-max-prompt-len tokens.

    Worker processes get a copy, so it holds values only and opens the tokenizer at its first call.
    """

    def __init__(self, args: Any) -> None:
        self.args = Namespace(**{name: getattr(args, name, None) for name in _SAMPLE_ARGUMENTS})
        self._maker: SampleMaker | None = None

    def __call__(self, record: Record) -> bool:
        if self._maker is None:
            self._maker = SampleMaker(self.args)
        return self._maker.is_short(self._maker(record))

    def __reduce__(self) -> Any:
        return RolloutFilter, (self.args,)


def prompt_filter(args: Any) -> RolloutFilter | None:
    """Return the filter for Prompts that --rollout-max-prompt-len asks for; None without it."""
    return None if args.rollout_max_prompt_len is None else RolloutFilter(args)


# Functions for the framework's command line


def mark_trained(args: Any, data: Sequence[Group]) -> None:
    """Mark the groups that slime trains on; for --rollout-sample-filter-path."""
    for group in data:
        _first_sample(group).metadata[_MARK] = True


def settle(args: Any, all_samples: Sequence[Group], data_source: Any) -> None:
    """Tell the data source what became of the finished groups; for --rollout-all-samples-process-path.

    data_source: the data source, or its method get_samples, which is what the standard rollout functions pass.
    """
    source = getattr(data_source, "__self__", data_source)
    if not isinstance(source, PromptsDataSource):
        raise PlanError(
            f"settle was called with {data_source!r}, expected a PromptsDataSource or its get_samples; name one in --data-source-path"
        )
    source.settle(all_samples)


def log_trained(
    rollout_id: int, args: Any, samples: Iterable[Any], extra_metrics: Any, rollout_time: Any
) -> bool:
    """Tell the data source what a rollout trains; for --custom-rollout-log-function-path.

    A log function of your own may call it.  It returns False: the framework logs as without it.
    """
    _source_of(args).settle_trained(rollout_id, samples)
    return False


def drop_filtered(keep: Callable[..., Any]) -> Callable[..., Any]:
    """Return a dynamic filter that also tells the data source which prompts it leaves out of a fully asynchronous rollout.

    Without it, such a prompt counts as in flight, and is given again after a resume.
    """

    def filtered(args: Any, samples: Group, **options: Any) -> Any:
        output = keep(args, samples, **options)
        source = _source_of(args)
        # The standard rollouts may train a group in spite of the filter; there, settle counts.
        if source.is_fully_async and not getattr(output, "keep", output):
            source.drop(samples)
        return output

    return filtered


def _source_of(args: Any) -> PromptsDataSource:
    """Return the data source that was made with these arguments, in this process."""
    for source in _sources:
        if source.args is args:
            return source
    raise PlanError(
        "this process has no PromptsDataSource with these arguments; name one in --data-source-path, and pass on the args that "
        "the framework gives you"
    )


def _first_sample(group: Group) -> Any:
    """Return the first sample of a group; of several that one rollout made, the first of these."""
    first = group[0]
    while isinstance(first, list):
        first = first[0]
    return first


def _ordinal(group: Group) -> int:
    ordinal = _first_sample(group).group_index
    if ordinal is None:
        raise PlanError(
            "a sample has group_index=None, expected the number that the data source gave it; copy it to samples that a generate "
            "function makes"
        )
    return int(ordinal)
