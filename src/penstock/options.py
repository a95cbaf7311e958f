"""Keyword arguments of public functions, with their types.  Written by `python -m penstock.settings`; do not edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

if TYPE_CHECKING:
    from penstock.store import Progress
    from penstock.types import Engine, Template, UnopenedTemplate


class OpenOptions(TypedDict, total=False):
    """Keyword arguments of `penstock.open`.

    format: File format, if file names do not show it: jsonl, json, csv, text, parquet, arrow,
        webdataset, megatron, token_bin, datatrove, mds, litdata, hf, pt, media_folder,
        sample_folder, yaml.
    split: Split of a data set folder, such as train or train[:10%].
    config: Configuration of a data set on the hub, if it has several.
    revision: Branch, tag or commit of a data set on the hub; else main.
    data_files: Files of a data set on the hub: patterns, or patterns by split.
    name: What the source is called; else its file or folder.
    cache_dir: The cache: a folder, or a URL in a bucket; else PENSTOCK_CACHE, else the platform's
        folder.
    on_bad: What to do with a row that cannot be read: stop, skip or quarantine.
    max_bad: How many bad rows are allowed.
    quarantine: File that bad rows are written to.
    max_row_bytes: The largest record that is read, in bytes.
    max_expansion: How many times its size a compressed file may have when it is unpacked.
    unique_keys: Refuse a JSON object that has a key twice.
    field: Of JSON: the key that the list of records is under.
    delimiter: Of CSV: what separates columns.
    names: Of CSV: the columns, if the file has no header.
    types: Of CSV: column → type of its values.
    quotes: Of CSV: false makes a quote a character like any other.
    record: Of text: line, paragraph, file, or the text that separates records.
    keep_blank: Of text: records of nothing but white space are records too.
    columns: Of Parquet and Arrow: the columns to read.
    json_columns: Of Parquet and Arrow: columns that hold JSON as text.
    nulls: Of Parquet and Arrow: deep removes the nulls that the schema added, keep leaves them.
    cache_bytes: Of Parquet and Arrow: decoded bytes that are kept in memory.
    version: Of an iterable: with it and a name, what was read of it is kept and found again.
    spool_bytes: Of an iterable: an error when so many bytes of it are on disk.
    sample: Of Megatron: a record is one sequence, or one document.
    dtype: Of raw tokens: the type of the ids, if no header says it.
    eot: Of raw tokens: the id of the end-of-text token.
    eot_at: Of raw tokens: whether a text has it at its end or start.
    arrays: Of MDS: types of the columns with the encoding bytes that hold arrays, such as {tokens:
        int64}.
    merge_json: Of WebDataset: members of the object in .json are fields of the record, else it is
        the field json.
    plugin_options: Settings of other packages' plugins, by the name of the plugin.
    """

    format: str | None
    """File format, if file names do not show it: jsonl, json, csv, text, parquet, arrow,
    webdataset, megatron, token_bin, datatrove, mds, litdata, hf, pt, media_folder, sample_folder,
    yaml."""
    split: str | None
    """Split of a data set folder, such as train or train[:10%]."""
    config: str | None
    """Configuration of a data set on the hub, if it has several."""
    revision: str | None
    """Branch, tag or commit of a data set on the hub; else main."""
    data_files: str | list[Any] | dict[str, Any] | None
    """Files of a data set on the hub: patterns, or patterns by split."""
    name: str | None
    """What the source is called; else its file or folder."""
    cache_dir: str | PathLike[str] | None
    """The cache: a folder, or a URL in a bucket; else PENSTOCK_CACHE, else the platform's
    folder."""
    on_bad: Literal["stop", "skip", "quarantine"]
    """What to do with a row that cannot be read: stop, skip or quarantine."""
    max_bad: int | None
    """How many bad rows are allowed."""
    quarantine: str | PathLike[str] | None
    """File that bad rows are written to."""
    max_row_bytes: int | None
    """The largest record that is read, in bytes."""
    max_expansion: int | None
    """How many times its size a compressed file may have when it is unpacked."""
    unique_keys: bool | None
    """Refuse a JSON object that has a key twice."""
    field: str | None
    """Of JSON: the key that the list of records is under."""
    delimiter: str | None
    """Of CSV: what separates columns."""
    names: Sequence[str] | None
    """Of CSV: the columns, if the file has no header."""
    types: Mapping[str, str] | None
    """Of CSV: column → type of its values."""
    quotes: bool | None
    """Of CSV: false makes a quote a character like any other."""
    record: str | None
    """Of text: line, paragraph, file, or the text that separates records."""
    keep_blank: bool | None
    """Of text: records of nothing but white space are records too."""
    columns: Sequence[str] | None
    """Of Parquet and Arrow: the columns to read."""
    json_columns: Sequence[str] | None
    """Of Parquet and Arrow: columns that hold JSON as text."""
    nulls: str | None
    """Of Parquet and Arrow: deep removes the nulls that the schema added, keep leaves them."""
    cache_bytes: int | None
    """Of Parquet and Arrow: decoded bytes that are kept in memory."""
    version: str | int | None
    """Of an iterable: with it and a name, what was read of it is kept and found again."""
    spool_bytes: int | None
    """Of an iterable: an error when so many bytes of it are on disk."""
    sample: str | None
    """Of Megatron: a record is one sequence, or one document."""
    dtype: str | None
    """Of raw tokens: the type of the ids, if no header says it."""
    eot: int | None
    """Of raw tokens: the id of the end-of-text token."""
    eot_at: str | None
    """Of raw tokens: whether a text has it at its end or start."""
    arrays: Mapping[str, str] | None
    """Of MDS: types of the columns with the encoding bytes that hold arrays, such as {tokens:
    int64}."""
    merge_json: bool | None
    """Of WebDataset: members of the object in .json are fields of the record, else it is the field
    json."""
    plugin_options: Mapping[str, Mapping[str, Any]] | None
    """Settings of other packages' plugins, by the name of the plugin."""


class PrepareOptions(TypedDict, total=False):
    """Keyword arguments of `penstock.prepare`.

    tokenizer: A folder, a tokenizer.json, a URL of one of these, or a name on the hub.
    template: How records become samples; auto detects it from the data.
    name: What the store is called; else as its source.
    cache_dir: The cache: a folder, or a URL in a bucket; else PENSTOCK_CACHE, else the platform's
        folder.
    num_proc: Number of processes; else all cores, shared with other local ranks.
    engine: What runs the work: local, ray, ray://host:port, or an Engine object.
    refresh: Prepare every shard again.
    cache: False keeps no prepared shards on disk, whatever cache_dir is.
    background: Prepare shards while they are used; needs a small shuffle_window, or no shuffle.
    fan_out: Make one sample of each trained turn, ending with that turn.
    progress: Auto (a bar or lines), plain, none, or a function.
    chat: Render both sides with the chat template; null: only for query_response, if the tokenizer
        has a chat template; render text with the chat template, too; null: messages and questions
        only, as in trl.
    chat_template: A chat template, the name of one that the tokenizer has, or a file that holds
        one.
    train_on: What is trained: assistant, last, completion, all, or a list of roles.
    train_reasoning: Whether the reasoning of a trained turn is trained.
    chat_template_kwargs: Variables for the chat template.
    today: The date that the chat template sees.
    message_weights: Keep weights of messages such as 0.5, as a weight of each token in the batch.
    verify: Conversations rendered a second time to verify their masks: first (a few of every shard)
        or all.
    on_refused: What to do with a conversation that the chat template refuses: stop or skip.
    on_missing_tokens: What to do where the chat template prints special tokens that the tokenizer
        does not have as one token: stop or warn.
    on_nothing: What to do with a sample without trained tokens: drop or stop.
    on_unrendered: What to do with a record that has fields the chat template does not print: warn
        (and count), stop or skip.
    on_unanswered: What to do with a conversation that ends with a user turn or a tool result: keep
        (and count), drop, trim (remove the turns after the last answer) or trim_tools (remove
        trailing tool results, drop those that then end with a user turn, as SkyRL does).
    special_in_text: How a special token inside a text is encoded: token, text or error.
    messages_key: Column with the messages.
    role_key: Key of a message's role.
    content_key: Key of a message's content.
    instruction_key: Column with the instruction.
    input_key: Column with the input of an instruction; column with the prompt; column with the ids.
    output_key: Column with the answer; column with the answer that is judged.
    history_key: Column with earlier turns.
    tool_key: Column with the tools.
    system_key: Column with a system prompt.
    documents_key: Column with documents.
    kwargs_key: Column with a record's own variables for the chat template.
    role_map: Role → other names of this role.
    tool_arguments: Arguments of tool calls: parse (JSON text becomes a mapping), text or as_is.
    content_parts: Content in parts: list passes the list to the template, text joins it.
    nulls: Keys of a message that hold null: drop, deep (in tools and calls too) or keep.
    separator: Text between instruction and input; text between prompt and answer; text after each
        step.
    processor: Folder of the model's processor, for images, video and audio; else the tokenizer's
        folder, if a sampled row has media; or none.
    media_root: Folder that paths of images, video and audio are relative to; else the folder of the
        data.
    media_folders: More folders that media may be read from; else only media_root and the folders of
        the data; / allows every folder.
    on_media: What to do with a record whose image, video or audio is missing, broken or in no
        place: stop or skip.
    max_image_pixels: Larger images are refused, as decompression bombs.
    bos: Add a beginning token: true, false, the token itself, or null for what the tokenizer does.
    eos: Add an end token: true, false, the token itself, or null for what the tokenizer does.
    key: Column with the text; column with the list of segments.
    labels_key: Column with the labels of the ids; column with the labels of the steps.
    mask_key: Column with the loss mask; null finds labels, loss_mask, assistant_masks or
        completion_mask.
    ignore_index: Label of tokens that are not trained.
    vocab_size: Number of ids, if no tokenizer is given.
    chosen_key: Column with the chosen answer.
    rejected_key: Column with the rejected answer.
    margin_key: Column with the margin of a pair, for a reward model.
    desirable_key: Column that says whether the answer is desirable.
    completions_key: Column with the list of steps.
    plugin_options: Settings of other packages' plugins, by the name of the plugin.
    """

    tokenizer: Any
    """A folder, a tokenizer.json, a URL of one of these, or a name on the hub."""
    template: str | Template | UnopenedTemplate
    """How records become samples; auto detects it from the data."""
    name: str | None
    """What the store is called; else as its source."""
    cache_dir: str | PathLike[str] | None
    """The cache: a folder, or a URL in a bucket; else PENSTOCK_CACHE, else the platform's
    folder."""
    num_proc: int | None
    """Number of processes; else all cores, shared with other local ranks."""
    engine: str | Engine
    """What runs the work: local, ray, ray://host:port, or an Engine object."""
    refresh: bool
    """Prepare every shard again."""
    cache: bool
    """False keeps no prepared shards on disk, whatever cache_dir is."""
    background: bool
    """Prepare shards while they are used; needs a small shuffle_window, or no shuffle."""
    fan_out: bool
    """Make one sample of each trained turn, ending with that turn."""
    progress: str | Callable[[Progress], object]
    """Auto (a bar or lines), plain, none, or a function."""
    chat: bool | None
    """Render both sides with the chat template; null: only for query_response, if the tokenizer has
    a chat template; render text with the chat template, too; null: messages and questions only, as
    in trl."""
    chat_template: str | None
    """A chat template, the name of one that the tokenizer has, or a file that holds one."""
    train_on: str | Sequence[str]
    """What is trained: assistant, last, completion, all, or a list of roles."""
    train_reasoning: bool
    """Whether the reasoning of a trained turn is trained."""
    chat_template_kwargs: dict[str, Any] | None
    """Variables for the chat template."""
    today: str
    """The date that the chat template sees."""
    message_weights: bool
    """Keep weights of messages such as 0.5, as a weight of each token in the batch."""
    verify: str
    """Conversations rendered a second time to verify their masks: first (a few of every shard) or
    all."""
    on_refused: str
    """What to do with a conversation that the chat template refuses: stop or skip."""
    on_missing_tokens: str
    """What to do where the chat template prints special tokens that the tokenizer does not have as
    one token: stop or warn."""
    on_nothing: str
    """What to do with a sample without trained tokens: drop or stop."""
    on_unrendered: str
    """What to do with a record that has fields the chat template does not print: warn (and count),
    stop or skip."""
    on_unanswered: str
    """What to do with a conversation that ends with a user turn or a tool result: keep (and count),
    drop, trim (remove the turns after the last answer) or trim_tools (remove trailing tool results,
    drop those that then end with a user turn, as SkyRL does)."""
    special_in_text: str | Literal["token", "text", "error"]
    """How a special token inside a text is encoded: token, text or error."""
    messages_key: str | None
    """Column with the messages."""
    role_key: str | None
    """Key of a message's role."""
    content_key: str | None
    """Key of a message's content."""
    instruction_key: str
    """Column with the instruction."""
    input_key: str | None
    """Column with the input of an instruction; column with the prompt; column with the ids."""
    output_key: str | None
    """Column with the answer; column with the answer that is judged."""
    history_key: str
    """Column with earlier turns."""
    tool_key: str
    """Column with the tools."""
    system_key: str | Sequence[str] | None
    """Column with a system prompt."""
    documents_key: str
    """Column with documents."""
    kwargs_key: str
    """Column with a record's own variables for the chat template."""
    role_map: Mapping[str, str | Sequence[str]] | None
    """Role → other names of this role."""
    tool_arguments: str
    """Arguments of tool calls: parse (JSON text becomes a mapping), text or as_is."""
    content_parts: str
    """Content in parts: list passes the list to the template, text joins it."""
    nulls: str
    """Keys of a message that hold null: drop, deep (in tools and calls too) or keep."""
    separator: str | None
    """Text between instruction and input; text between prompt and answer; text after each step."""
    processor: str | None
    """Folder of the model's processor, for images, video and audio; else the tokenizer's folder, if
    a sampled row has media; or none."""
    media_root: str | None
    """Folder that paths of images, video and audio are relative to; else the folder of the data."""
    media_folders: str | Sequence[str] | None
    """More folders that media may be read from; else only media_root and the folders of the data; /
    allows every folder."""
    on_media: str
    """What to do with a record whose image, video or audio is missing, broken or in no place: stop
    or skip."""
    max_image_pixels: int
    """Larger images are refused, as decompression bombs."""
    bos: bool | str | None
    """Add a beginning token: true, false, the token itself, or null for what the tokenizer does."""
    eos: bool | str | None
    """Add an end token: true, false, the token itself, or null for what the tokenizer does."""
    key: str
    """Column with the text; column with the list of segments."""
    labels_key: str
    """Column with the labels of the ids; column with the labels of the steps."""
    mask_key: str | None
    """Column with the loss mask; null finds labels, loss_mask, assistant_masks or
    completion_mask."""
    ignore_index: int
    """Label of tokens that are not trained."""
    vocab_size: int | None
    """Number of ids, if no tokenizer is given."""
    chosen_key: str | None
    """Column with the chosen answer."""
    rejected_key: str | None
    """Column with the rejected answer."""
    margin_key: str | None
    """Column with the margin of a pair, for a reward model."""
    desirable_key: str | None
    """Column that says whether the answer is desirable."""
    completions_key: str
    """Column with the list of steps."""
    plugin_options: Mapping[str, Mapping[str, Any]] | None
    """Settings of other packages' plugins, by the name of the plugin."""


class LoaderOptions(TypedDict, total=False):
    """Keyword arguments of `penstock.Loader`.

    batch_size: Rows per rank and step.
    epochs: Passes over the data; null never ends.
    rank: Which rank this is.
    world_size: How many ranks there are.
    model_parallel_size: Neighbouring ranks that share their rows.
    mesh: The data-parallel dimension of a device mesh, instead of ranks.
    run_id: The name of the run in the cache: penstock view shows it there.
    prefetch: Steps made ahead by a thread; small ones are made several at once, so it may be a few
        more.
    media_threads: Threads that decode images.
    media_bytes: Bytes of decoded media made ahead, at most; a step that has more is made alone.
    mirror_bytes: Of a cache in a bucket, bytes of shards kept on this machine; else
        PENSTOCK_MIRROR_BYTES, else 10 % of the free disk.
    max_dropped: The share of a data set's records, or of its tokens, that may never reach a batch:
        records that give no sample, and samples that max_length drops; above it the Loader refuses
        and `check` fails; 1 allows everything.
    per_epoch: An iteration ends with its epoch, for trainers that loop over epochs.
    skip_steps: Steps that are left out.
    schedule: What tables of weights count: steps (the default), or tokens, of which a row has
        max_length.
    interpolate: Weights go from one point of a table to the next in 16 equal stages, not at once.
    collate: For plain records, makes a batch of a list of them; for tokens, is given the arrays of
        a batch and its rows (their spans say source, sample, start, stop) and returns the arrays to
        deliver.
    max_length: Tokens per row.
    packing: How samples share a row: mixed_fit, best_fit, first_fit, next_fit, window_N, concat,
        none, group_N.
    on_overlong: Samples longer than max_length: drop, truncate, split or error.
    shuffle: A new order in every epoch.
    shuffle_window: Shards shuffled together: auto (all; 1,024 at a time where there are more), all,
        or a number.
    seed: Decides the order: the same seed gives the same order.
    last_step: The last step of an epoch: pad, drop, repeat, error or wrap.
    mix_by: Weights count samples (the default) or tokens.
    stopping_strategy: An epoch of a mixture ends when the first source (the default), or all, have
        been through.
    block: Samples packed together.
    overlap: With packing: concat, each row begins with the last token of the row before, so that it
        predicts this row's first new token.
    align: Each sample takes a multiple of this many tokens in its row.
    max_per_row: Samples that may share a row.
    balance: Rank deals the rows of a step to ranks by cost, so that ranks finish together; none
        deals them in turn; block also gives rows of similar cost to the same step.
    balance_rows: With balance: block, rows of similar cost that stay together: a few times the rows
        of a step.
    cost_attention: The cost of a row is this × the sum of its samples' squared lengths; 0 for
        models without attention.
    cost_linear: Plus this × its tokens: 6 × the model's hidden size, which is 4,096 for most models
        of 7 or 8 billion parameters.
    output: Torch, numpy, or jax (int32 arrays; `segment_ids` instead of `seq_idx`; `cu_seqlens`
        only with max_segments).
    padding_free: One flat row of all tokens.
    padding: Of unpacked rows: longest or max_length.
    pad_side: Right or left.
    pad_to_multiple_of: Lengths become a multiple of this.
    pad_token_id: The id of padding.
    labels: Unshifted, or shifted for models that do not shift.
    max_segments: Samples and paddings of a batch, at most: `cu_seqlens` then always has this length
        plus one, its last value repeated.
    attention_mask: Auto (a plain mask for unpacked rows), none, or 4d (block-diagonal and causal).
    documents: Apart: attention, positions and targets stay inside a document (sample); joined, with
        packing: concat: they run through the row.
    pin_memory: Tensors in pinned memory.
    use_cache: Batches with several samples in a row carry `use_cache=False`: with a cache, models
        of transformers ignore where positions restart; null leaves it out, for models that do not
        take it.
    plugin_options: Settings of other packages' plugins, by the name of the plugin.
    """

    batch_size: Required[int]
    """Rows per rank and step."""
    epochs: int | None
    """Passes over the data; null never ends."""
    rank: int | None
    """Which rank this is."""
    world_size: int | None
    """How many ranks there are."""
    model_parallel_size: int
    """Neighbouring ranks that share their rows."""
    mesh: Any
    """The data-parallel dimension of a device mesh, instead of ranks."""
    run_id: str | None
    """The name of the run in the cache: penstock view shows it there."""
    prefetch: int
    """Steps made ahead by a thread; small ones are made several at once, so it may be a few
    more."""
    media_threads: int
    """Threads that decode images."""
    media_bytes: int
    """Bytes of decoded media made ahead, at most; a step that has more is made alone."""
    mirror_bytes: int | None
    """Of a cache in a bucket, bytes of shards kept on this machine; else PENSTOCK_MIRROR_BYTES,
    else 10 % of the free disk."""
    max_dropped: float
    """The share of a data set's records, or of its tokens, that may never reach a batch: records
    that give no sample, and samples that max_length drops; above it the Loader refuses and `check`
    fails; 1 allows everything."""
    per_epoch: bool
    """An iteration ends with its epoch, for trainers that loop over epochs."""
    skip_steps: Iterable[int]
    """Steps that are left out."""
    schedule: Literal["steps", "tokens"] | None
    """What tables of weights count: steps (the default), or tokens, of which a row has
    max_length."""
    interpolate: bool
    """Weights go from one point of a table to the next in 16 equal stages, not at once."""
    collate: Callable[..., Any] | None
    """For plain records, makes a batch of a list of them; for tokens, is given the arrays of a
    batch and its rows (their spans say source, sample, start, stop) and returns the arrays to
    deliver."""
    max_length: int
    """Tokens per row."""
    packing: str
    """How samples share a row: mixed_fit, best_fit, first_fit, next_fit, window_N, concat, none,
    group_N."""
    on_overlong: Literal["drop", "truncate", "split", "error"]
    """Samples longer than max_length: drop, truncate, split or error."""
    shuffle: bool
    """A new order in every epoch."""
    shuffle_window: int | Literal["auto", "all"]
    """Shards shuffled together: auto (all; 1,024 at a time where there are more), all, or a
    number."""
    seed: int
    """Decides the order: the same seed gives the same order."""
    last_step: Literal["pad", "drop", "repeat", "error", "wrap"]
    """The last step of an epoch: pad, drop, repeat, error or wrap."""
    mix_by: Literal["samples", "tokens"] | None
    """Weights count samples (the default) or tokens."""
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] | None
    """An epoch of a mixture ends when the first source (the default), or all, have been through."""
    block: int
    """Samples packed together."""
    overlap: bool
    """With packing: concat, each row begins with the last token of the row before, so that it
    predicts this row's first new token."""
    align: int
    """Each sample takes a multiple of this many tokens in its row."""
    max_per_row: int | None
    """Samples that may share a row."""
    balance: Literal["none", "rank", "block"]
    """Rank deals the rows of a step to ranks by cost, so that ranks finish together; none deals
    them in turn; block also gives rows of similar cost to the same step."""
    balance_rows: int
    """With balance: block, rows of similar cost that stay together: a few times the rows of a
    step."""
    cost_attention: int
    """The cost of a row is this × the sum of its samples' squared lengths; 0 for models without
    attention."""
    cost_linear: int
    """Plus this × its tokens: 6 × the model's hidden size, which is 4,096 for most models of 7 or 8
    billion parameters."""
    output: Literal["numpy", "torch", "jax"]
    """Torch, numpy, or jax (int32 arrays; `segment_ids` instead of `seq_idx`; `cu_seqlens` only
    with max_segments)."""
    padding_free: bool
    """One flat row of all tokens."""
    padding: Literal["longest", "max_length"]
    """Of unpacked rows: longest or max_length."""
    pad_side: Literal["right", "left"]
    """Right or left."""
    pad_to_multiple_of: int
    """Lengths become a multiple of this."""
    pad_token_id: int
    """The id of padding."""
    labels: Literal["unshifted", "shifted"]
    """Unshifted, or shifted for models that do not shift."""
    max_segments: int | None
    """Samples and paddings of a batch, at most: `cu_seqlens` then always has this length plus one,
    its last value repeated."""
    attention_mask: Literal["auto", "none", "4d"]
    """Auto (a plain mask for unpacked rows), none, or 4d (block-diagonal and causal)."""
    documents: Literal["apart", "joined"]
    """Apart: attention, positions and targets stay inside a document (sample); joined, with
    packing: concat: they run through the row."""
    pin_memory: bool
    """Tensors in pinned memory."""
    use_cache: bool | None
    """Batches with several samples in a row carry `use_cache=False`: with a cache, models of
    transformers ignore where positions restart; null leaves it out, for models that do not take
    it."""
    plugin_options: Mapping[str, Mapping[str, Any]] | None
    """Settings of other packages' plugins, by the name of the plugin."""


class RecipeOptions(TypedDict, total=False):
    """Keys of a recipe, which `penstock.load` takes in place of what the file says.

    format: File format, if file names do not show it: jsonl, json, csv, text, parquet, arrow,
        webdataset, megatron, token_bin, datatrove, mds, litdata, hf, pt, media_folder,
        sample_folder, yaml.
    split: Split of a data set folder, such as train or train[:10%].
    config: Configuration of a data set on the hub, if it has several.
    revision: Branch, tag or commit of a data set on the hub; else main.
    data_files: Files of a data set on the hub: patterns, or patterns by split.
    cache_dir: The cache: a folder, or a URL in a bucket; else PENSTOCK_CACHE, else the platform's
        folder.
    on_bad: What to do with a row that cannot be read: stop, skip or quarantine.
    max_bad: How many bad rows are allowed.
    quarantine: File that bad rows are written to.
    options: Options of the file format, such as columns, delimiter or record.
    tokenizer: A folder, a tokenizer.json, a URL of one of these, or a name on the hub.
    template: How records become samples; auto detects it from the data.
    num_proc: Number of processes; else all cores, shared with other local ranks.
    engine: What runs the work: local, ray, ray://host:port, or an Engine object.
    refresh: Prepare every shard again.
    cache: False keeps no prepared shards on disk, whatever cache_dir is.
    background: Prepare shards while they are used; needs a small shuffle_window, or no shuffle.
    fan_out: Make one sample of each trained turn, ending with that turn.
    progress: Auto (a bar or lines), plain, none, or a function.
    batch_size: Rows per rank and step.
    epochs: Passes over the data; null never ends.
    rank: Which rank this is.
    world_size: How many ranks there are.
    model_parallel_size: Neighbouring ranks that share their rows.
    mesh: The data-parallel dimension of a device mesh, instead of ranks.
    run_id: The name of the run in the cache: penstock view shows it there.
    prefetch: Steps made ahead by a thread; small ones are made several at once, so it may be a few
        more.
    media_threads: Threads that decode images.
    media_bytes: Bytes of decoded media made ahead, at most; a step that has more is made alone.
    mirror_bytes: Of a cache in a bucket, bytes of shards kept on this machine; else
        PENSTOCK_MIRROR_BYTES, else 10 % of the free disk.
    max_dropped: The share of a data set's records, or of its tokens, that may never reach a batch:
        records that give no sample, and samples that max_length drops; above it the Loader refuses
        and `check` fails; 1 allows everything.
    per_epoch: An iteration ends with its epoch, for trainers that loop over epochs.
    skip_steps: Steps that are left out.
    schedule: What tables of weights count: steps (the default), or tokens, of which a row has
        max_length.
    interpolate: Weights go from one point of a table to the next in 16 equal stages, not at once.
    collate: For plain records, makes a batch of a list of them; for tokens, is given the arrays of
        a batch and its rows (their spans say source, sample, start, stop) and returns the arrays to
        deliver.
    max_length: Tokens per row.
    packing: How samples share a row: mixed_fit, best_fit, first_fit, next_fit, window_N, concat,
        none, group_N.
    on_overlong: Samples longer than max_length: drop, truncate, split or error.
    shuffle: A new order in every epoch.
    shuffle_window: Shards shuffled together: auto (all; 1,024 at a time where there are more), all,
        or a number.
    seed: Decides the order: the same seed gives the same order.
    last_step: The last step of an epoch: pad, drop, repeat, error or wrap.
    mix_by: Weights count samples (the default) or tokens.
    stopping_strategy: An epoch of a mixture ends when the first source (the default), or all, have
        been through.
    block: Samples packed together.
    overlap: With packing: concat, each row begins with the last token of the row before, so that it
        predicts this row's first new token.
    align: Each sample takes a multiple of this many tokens in its row.
    max_per_row: Samples that may share a row.
    balance: Rank deals the rows of a step to ranks by cost, so that ranks finish together; none
        deals them in turn; block also gives rows of similar cost to the same step.
    balance_rows: With balance: block, rows of similar cost that stay together: a few times the rows
        of a step.
    cost_attention: The cost of a row is this × the sum of its samples' squared lengths; 0 for
        models without attention.
    cost_linear: Plus this × its tokens: 6 × the model's hidden size, which is 4,096 for most models
        of 7 or 8 billion parameters.
    output: Torch, numpy, or jax (int32 arrays; `segment_ids` instead of `seq_idx`; `cu_seqlens`
        only with max_segments).
    padding_free: One flat row of all tokens.
    padding: Of unpacked rows: longest or max_length.
    pad_side: Right or left.
    pad_to_multiple_of: Lengths become a multiple of this.
    pad_token_id: The id of padding.
    labels: Unshifted, or shifted for models that do not shift.
    max_segments: Samples and paddings of a batch, at most: `cu_seqlens` then always has this length
        plus one, its last value repeated.
    attention_mask: Auto (a plain mask for unpacked rows), none, or 4d (block-diagonal and causal).
    documents: Apart: attention, positions and targets stay inside a document (sample); joined, with
        packing: concat: they run through the row.
    pin_memory: Tensors in pinned memory.
    use_cache: Batches with several samples in a row carry `use_cache=False`: with a cache, models
        of transformers ignore where positions restart; null leaves it out, for models that do not
        take it.
    chat: Render both sides with the chat template; null: only for query_response, if the tokenizer
        has a chat template; render text with the chat template, too; null: messages and questions
        only, as in trl.
    chat_template: A chat template, the name of one that the tokenizer has, or a file that holds
        one.
    train_on: What is trained: assistant, last, completion, all, or a list of roles.
    train_reasoning: Whether the reasoning of a trained turn is trained.
    chat_template_kwargs: Variables for the chat template.
    today: The date that the chat template sees.
    message_weights: Keep weights of messages such as 0.5, as a weight of each token in the batch.
    verify: Conversations rendered a second time to verify their masks: first (a few of every shard)
        or all.
    on_refused: What to do with a conversation that the chat template refuses: stop or skip.
    on_missing_tokens: What to do where the chat template prints special tokens that the tokenizer
        does not have as one token: stop or warn.
    on_nothing: What to do with a sample without trained tokens: drop or stop.
    on_unrendered: What to do with a record that has fields the chat template does not print: warn
        (and count), stop or skip.
    on_unanswered: What to do with a conversation that ends with a user turn or a tool result: keep
        (and count), drop, trim (remove the turns after the last answer) or trim_tools (remove
        trailing tool results, drop those that then end with a user turn, as SkyRL does).
    special_in_text: How a special token inside a text is encoded: token, text or error.
    messages_key: Column with the messages.
    role_key: Key of a message's role.
    content_key: Key of a message's content.
    instruction_key: Column with the instruction.
    input_key: Column with the input of an instruction; column with the prompt; column with the ids.
    output_key: Column with the answer; column with the answer that is judged.
    history_key: Column with earlier turns.
    tool_key: Column with the tools.
    system_key: Column with a system prompt.
    documents_key: Column with documents.
    kwargs_key: Column with a record's own variables for the chat template.
    role_map: Role → other names of this role.
    tool_arguments: Arguments of tool calls: parse (JSON text becomes a mapping), text or as_is.
    content_parts: Content in parts: list passes the list to the template, text joins it.
    nulls: Keys of a message that hold null: drop, deep (in tools and calls too) or keep.
    separator: Text between instruction and input; text between prompt and answer; text after each
        step.
    processor: Folder of the model's processor, for images, video and audio; else the tokenizer's
        folder, if a sampled row has media; or none.
    media_root: Folder that paths of images, video and audio are relative to; else the folder of the
        data.
    media_folders: More folders that media may be read from; else only media_root and the folders of
        the data; / allows every folder.
    on_media: What to do with a record whose image, video or audio is missing, broken or in no
        place: stop or skip.
    max_image_pixels: Larger images are refused, as decompression bombs.
    bos: Add a beginning token: true, false, the token itself, or null for what the tokenizer does.
    eos: Add an end token: true, false, the token itself, or null for what the tokenizer does.
    key: Column with the text; column with the list of segments.
    labels_key: Column with the labels of the ids; column with the labels of the steps.
    mask_key: Column with the loss mask; null finds labels, loss_mask, assistant_masks or
        completion_mask.
    ignore_index: Label of tokens that are not trained.
    vocab_size: Number of ids, if no tokenizer is given.
    chosen_key: Column with the chosen answer.
    rejected_key: Column with the rejected answer.
    margin_key: Column with the margin of a pair, for a reward model.
    desirable_key: Column that says whether the answer is desirable.
    completions_key: Column with the list of steps.
    data: The data sets to train on.
    eval: The data sets to evaluate on.
    """

    format: str | None
    """File format, if file names do not show it: jsonl, json, csv, text, parquet, arrow,
    webdataset, megatron, token_bin, datatrove, mds, litdata, hf, pt, media_folder, sample_folder,
    yaml."""
    split: str | None
    """Split of a data set folder, such as train or train[:10%]."""
    config: str | None
    """Configuration of a data set on the hub, if it has several."""
    revision: str | None
    """Branch, tag or commit of a data set on the hub; else main."""
    data_files: str | list[Any] | dict[str, Any] | None
    """Files of a data set on the hub: patterns, or patterns by split."""
    cache_dir: str | PathLike[str] | None
    """The cache: a folder, or a URL in a bucket; else PENSTOCK_CACHE, else the platform's
    folder."""
    on_bad: Literal["stop", "skip", "quarantine"]
    """What to do with a row that cannot be read: stop, skip or quarantine."""
    max_bad: int | None
    """How many bad rows are allowed."""
    quarantine: str | PathLike[str] | None
    """File that bad rows are written to."""
    options: dict[str, Any]
    """Options of the file format, such as columns, delimiter or record."""
    tokenizer: Any
    """A folder, a tokenizer.json, a URL of one of these, or a name on the hub."""
    template: str | Template | UnopenedTemplate
    """How records become samples; auto detects it from the data."""
    num_proc: int | None
    """Number of processes; else all cores, shared with other local ranks."""
    engine: str | Engine
    """What runs the work: local, ray, ray://host:port, or an Engine object."""
    refresh: bool
    """Prepare every shard again."""
    cache: bool
    """False keeps no prepared shards on disk, whatever cache_dir is."""
    background: bool
    """Prepare shards while they are used; needs a small shuffle_window, or no shuffle."""
    fan_out: bool
    """Make one sample of each trained turn, ending with that turn."""
    progress: str | Callable[[Progress], object]
    """Auto (a bar or lines), plain, none, or a function."""
    batch_size: int
    """Rows per rank and step."""
    epochs: int | None
    """Passes over the data; null never ends."""
    rank: int | None
    """Which rank this is."""
    world_size: int | None
    """How many ranks there are."""
    model_parallel_size: int
    """Neighbouring ranks that share their rows."""
    mesh: Any
    """The data-parallel dimension of a device mesh, instead of ranks."""
    run_id: str | None
    """The name of the run in the cache: penstock view shows it there."""
    prefetch: int
    """Steps made ahead by a thread; small ones are made several at once, so it may be a few
    more."""
    media_threads: int
    """Threads that decode images."""
    media_bytes: int
    """Bytes of decoded media made ahead, at most; a step that has more is made alone."""
    mirror_bytes: int | None
    """Of a cache in a bucket, bytes of shards kept on this machine; else PENSTOCK_MIRROR_BYTES,
    else 10 % of the free disk."""
    max_dropped: float
    """The share of a data set's records, or of its tokens, that may never reach a batch: records
    that give no sample, and samples that max_length drops; above it the Loader refuses and `check`
    fails; 1 allows everything."""
    per_epoch: bool
    """An iteration ends with its epoch, for trainers that loop over epochs."""
    skip_steps: Iterable[int]
    """Steps that are left out."""
    schedule: Literal["steps", "tokens"] | None
    """What tables of weights count: steps (the default), or tokens, of which a row has
    max_length."""
    interpolate: bool
    """Weights go from one point of a table to the next in 16 equal stages, not at once."""
    collate: Callable[..., Any] | None
    """For plain records, makes a batch of a list of them; for tokens, is given the arrays of a
    batch and its rows (their spans say source, sample, start, stop) and returns the arrays to
    deliver."""
    max_length: int
    """Tokens per row."""
    packing: str
    """How samples share a row: mixed_fit, best_fit, first_fit, next_fit, window_N, concat, none,
    group_N."""
    on_overlong: Literal["drop", "truncate", "split", "error"]
    """Samples longer than max_length: drop, truncate, split or error."""
    shuffle: bool
    """A new order in every epoch."""
    shuffle_window: int | Literal["auto", "all"]
    """Shards shuffled together: auto (all; 1,024 at a time where there are more), all, or a
    number."""
    seed: int
    """Decides the order: the same seed gives the same order."""
    last_step: Literal["pad", "drop", "repeat", "error", "wrap"]
    """The last step of an epoch: pad, drop, repeat, error or wrap."""
    mix_by: Literal["samples", "tokens"] | None
    """Weights count samples (the default) or tokens."""
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] | None
    """An epoch of a mixture ends when the first source (the default), or all, have been through."""
    block: int
    """Samples packed together."""
    overlap: bool
    """With packing: concat, each row begins with the last token of the row before, so that it
    predicts this row's first new token."""
    align: int
    """Each sample takes a multiple of this many tokens in its row."""
    max_per_row: int | None
    """Samples that may share a row."""
    balance: Literal["none", "rank", "block"]
    """Rank deals the rows of a step to ranks by cost, so that ranks finish together; none deals
    them in turn; block also gives rows of similar cost to the same step."""
    balance_rows: int
    """With balance: block, rows of similar cost that stay together: a few times the rows of a
    step."""
    cost_attention: int
    """The cost of a row is this × the sum of its samples' squared lengths; 0 for models without
    attention."""
    cost_linear: int
    """Plus this × its tokens: 6 × the model's hidden size, which is 4,096 for most models of 7 or 8
    billion parameters."""
    output: Literal["numpy", "torch", "jax"]
    """Torch, numpy, or jax (int32 arrays; `segment_ids` instead of `seq_idx`; `cu_seqlens` only
    with max_segments)."""
    padding_free: bool
    """One flat row of all tokens."""
    padding: Literal["longest", "max_length"]
    """Of unpacked rows: longest or max_length."""
    pad_side: Literal["right", "left"]
    """Right or left."""
    pad_to_multiple_of: int
    """Lengths become a multiple of this."""
    pad_token_id: int
    """The id of padding."""
    labels: Literal["unshifted", "shifted"]
    """Unshifted, or shifted for models that do not shift."""
    max_segments: int | None
    """Samples and paddings of a batch, at most: `cu_seqlens` then always has this length plus one,
    its last value repeated."""
    attention_mask: Literal["auto", "none", "4d"]
    """Auto (a plain mask for unpacked rows), none, or 4d (block-diagonal and causal)."""
    documents: Literal["apart", "joined"]
    """Apart: attention, positions and targets stay inside a document (sample); joined, with
    packing: concat: they run through the row."""
    pin_memory: bool
    """Tensors in pinned memory."""
    use_cache: bool | None
    """Batches with several samples in a row carry `use_cache=False`: with a cache, models of
    transformers ignore where positions restart; null leaves it out, for models that do not take
    it."""
    chat: bool | None
    """Render both sides with the chat template; null: only for query_response, if the tokenizer has
    a chat template; render text with the chat template, too; null: messages and questions only, as
    in trl."""
    chat_template: str | None
    """A chat template, the name of one that the tokenizer has, or a file that holds one."""
    train_on: str | Sequence[str]
    """What is trained: assistant, last, completion, all, or a list of roles."""
    train_reasoning: bool
    """Whether the reasoning of a trained turn is trained."""
    chat_template_kwargs: dict[str, Any] | None
    """Variables for the chat template."""
    today: str
    """The date that the chat template sees."""
    message_weights: bool
    """Keep weights of messages such as 0.5, as a weight of each token in the batch."""
    verify: str
    """Conversations rendered a second time to verify their masks: first (a few of every shard) or
    all."""
    on_refused: str
    """What to do with a conversation that the chat template refuses: stop or skip."""
    on_missing_tokens: str
    """What to do where the chat template prints special tokens that the tokenizer does not have as
    one token: stop or warn."""
    on_nothing: str
    """What to do with a sample without trained tokens: drop or stop."""
    on_unrendered: str
    """What to do with a record that has fields the chat template does not print: warn (and count),
    stop or skip."""
    on_unanswered: str
    """What to do with a conversation that ends with a user turn or a tool result: keep (and count),
    drop, trim (remove the turns after the last answer) or trim_tools (remove trailing tool results,
    drop those that then end with a user turn, as SkyRL does)."""
    special_in_text: str | Literal["token", "text", "error"]
    """How a special token inside a text is encoded: token, text or error."""
    messages_key: str | None
    """Column with the messages."""
    role_key: str | None
    """Key of a message's role."""
    content_key: str | None
    """Key of a message's content."""
    instruction_key: str
    """Column with the instruction."""
    input_key: str | None
    """Column with the input of an instruction; column with the prompt; column with the ids."""
    output_key: str | None
    """Column with the answer; column with the answer that is judged."""
    history_key: str
    """Column with earlier turns."""
    tool_key: str
    """Column with the tools."""
    system_key: str | Sequence[str] | None
    """Column with a system prompt."""
    documents_key: str
    """Column with documents."""
    kwargs_key: str
    """Column with a record's own variables for the chat template."""
    role_map: Mapping[str, str | Sequence[str]] | None
    """Role → other names of this role."""
    tool_arguments: str
    """Arguments of tool calls: parse (JSON text becomes a mapping), text or as_is."""
    content_parts: str
    """Content in parts: list passes the list to the template, text joins it."""
    nulls: str
    """Keys of a message that hold null: drop, deep (in tools and calls too) or keep."""
    separator: str | None
    """Text between instruction and input; text between prompt and answer; text after each step."""
    processor: str | None
    """Folder of the model's processor, for images, video and audio; else the tokenizer's folder, if
    a sampled row has media; or none."""
    media_root: str | None
    """Folder that paths of images, video and audio are relative to; else the folder of the data."""
    media_folders: str | Sequence[str] | None
    """More folders that media may be read from; else only media_root and the folders of the data; /
    allows every folder."""
    on_media: str
    """What to do with a record whose image, video or audio is missing, broken or in no place: stop
    or skip."""
    max_image_pixels: int
    """Larger images are refused, as decompression bombs."""
    bos: bool | str | None
    """Add a beginning token: true, false, the token itself, or null for what the tokenizer does."""
    eos: bool | str | None
    """Add an end token: true, false, the token itself, or null for what the tokenizer does."""
    key: str
    """Column with the text; column with the list of segments."""
    labels_key: str
    """Column with the labels of the ids; column with the labels of the steps."""
    mask_key: str | None
    """Column with the loss mask; null finds labels, loss_mask, assistant_masks or
    completion_mask."""
    ignore_index: int
    """Label of tokens that are not trained."""
    vocab_size: int | None
    """Number of ids, if no tokenizer is given."""
    chosen_key: str | None
    """Column with the chosen answer."""
    rejected_key: str | None
    """Column with the rejected answer."""
    margin_key: str | None
    """Column with the margin of a pair, for a reward model."""
    desirable_key: str | None
    """Column that says whether the answer is desirable."""
    completions_key: str
    """Column with the list of steps."""
    data: Any
    """The data sets to train on."""
    eval: Any
    """The data sets to evaluate on."""


class PromptOptions(TypedDict, total=False):
    """Keyword arguments of `penstock.Prompts`.

    repeats: Rollouts of each prompt; workers read it from the prompt.
    epochs: How often every prompt is given; None for ever.
    max_length: Longer prompts are left out and counted.
    lease: Seconds after which a prompt that was taken and not acknowledged is given again; None for
        never.
    part: Of a recipe: train, or the name of an eval set.
    filter: A function over records; those for which it returns false are left out and counted.
    filter_version: Have the answers of the filter remembered; raise it when something changes that
        the function uses.
    num_proc: Processes that call the filter; else all cores.
    seed: Decides the order: the same seed gives the same order.
    shuffle: A new order in every epoch.
    shuffle_window: Shards shuffled together: auto (all; 1,024 at a time where there are more), all,
        or a number.
    on_overlong: Samples longer than max_length: drop, truncate, split or error.
    mix_by: Weights count samples (the default) or tokens.
    stopping_strategy: An epoch of a mixture ends when the first source (the default), or all, have
        been through.
    block: Samples packed together.
    """

    repeats: int
    """Rollouts of each prompt; workers read it from the prompt."""
    epochs: int | None
    """How often every prompt is given; None for ever."""
    max_length: int | None
    """Longer prompts are left out and counted."""
    lease: float | None
    """Seconds after which a prompt that was taken and not acknowledged is given again; None for
    never."""
    part: str
    """Of a recipe: train, or the name of an eval set."""
    filter: Callable[..., Any] | None
    """A function over records; those for which it returns false are left out and counted."""
    filter_version: str | None
    """Have the answers of the filter remembered; raise it when something changes that the function
    uses."""
    num_proc: int | None
    """Processes that call the filter; else all cores."""
    seed: int
    """Decides the order: the same seed gives the same order."""
    shuffle: bool
    """A new order in every epoch."""
    shuffle_window: int | Literal["auto", "all"]
    """Shards shuffled together: auto (all; 1,024 at a time where there are more), all, or a
    number."""
    on_overlong: Literal["drop", "truncate", "split", "error"]
    """Samples longer than max_length: drop, truncate, split or error."""
    mix_by: Literal["samples", "tokens"] | None
    """Weights count samples (the default) or tokens."""
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] | None
    """An epoch of a mixture ends when the first source (the default), or all, have been through."""
    block: int
    """Samples packed together."""


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "OpenOptions": {
        "format": None,
        "split": None,
        "config": None,
        "revision": None,
        "data_files": None,
        "name": None,
        "cache_dir": None,
        "on_bad": "stop",
        "max_bad": None,
        "quarantine": None,
        "max_row_bytes": None,
        "max_expansion": None,
        "unique_keys": None,
        "field": None,
        "delimiter": None,
        "names": None,
        "types": None,
        "quotes": None,
        "record": None,
        "keep_blank": None,
        "columns": None,
        "json_columns": None,
        "nulls": None,
        "cache_bytes": None,
        "version": None,
        "spool_bytes": None,
        "sample": None,
        "dtype": None,
        "eot": None,
        "eot_at": None,
        "arrays": None,
        "merge_json": None,
        "plugin_options": None,
    },
    "PrepareOptions": {
        "tokenizer": None,
        "template": "auto",
        "name": None,
        "cache_dir": None,
        "num_proc": None,
        "engine": "local",
        "refresh": False,
        "cache": True,
        "background": False,
        "fan_out": False,
        "progress": "auto",
        "chat": None,
        "chat_template": None,
        "train_on": Ellipsis,
        "train_reasoning": True,
        "chat_template_kwargs": None,
        "today": "2025-01-01",
        "message_weights": False,
        "verify": "first",
        "on_refused": "stop",
        "on_missing_tokens": "stop",
        "on_nothing": "drop",
        "on_unrendered": "warn",
        "on_unanswered": "keep",
        "special_in_text": "token",
        "messages_key": None,
        "role_key": None,
        "content_key": None,
        "instruction_key": "instruction",
        "input_key": Ellipsis,
        "output_key": None,
        "history_key": "history",
        "tool_key": "tools",
        "system_key": ("system", "system_prompt"),
        "documents_key": "documents",
        "kwargs_key": "chat_template_kwargs",
        "role_map": None,
        "tool_arguments": "parse",
        "content_parts": "list",
        "nulls": "drop",
        "separator": Ellipsis,
        "processor": None,
        "media_root": None,
        "media_folders": None,
        "on_media": "stop",
        "max_image_pixels": 89478485,
        "bos": None,
        "eos": Ellipsis,
        "key": Ellipsis,
        "labels_key": "labels",
        "mask_key": None,
        "ignore_index": -100,
        "vocab_size": None,
        "chosen_key": None,
        "rejected_key": None,
        "margin_key": None,
        "desirable_key": None,
        "completions_key": "completions",
        "plugin_options": None,
    },
    "LoaderOptions": {
        "epochs": 1,
        "rank": None,
        "world_size": None,
        "model_parallel_size": 1,
        "mesh": None,
        "run_id": None,
        "prefetch": 2,
        "media_threads": 4,
        "media_bytes": 1073741824,
        "mirror_bytes": None,
        "max_dropped": 0.5,
        "per_epoch": False,
        "skip_steps": (),
        "schedule": None,
        "interpolate": False,
        "collate": None,
        "max_length": 4096,
        "packing": "mixed_fit",
        "on_overlong": "drop",
        "shuffle": True,
        "shuffle_window": "auto",
        "seed": 0,
        "last_step": "pad",
        "mix_by": None,
        "stopping_strategy": None,
        "block": 65536,
        "overlap": False,
        "align": 1,
        "max_per_row": None,
        "balance": "rank",
        "balance_rows": 256,
        "cost_attention": 1,
        "cost_linear": 24576,
        "output": "torch",
        "padding_free": False,
        "padding": "longest",
        "pad_side": "right",
        "pad_to_multiple_of": 1,
        "pad_token_id": 0,
        "labels": "unshifted",
        "max_segments": None,
        "attention_mask": "auto",
        "documents": "apart",
        "pin_memory": False,
        "use_cache": False,
        "plugin_options": None,
    },
    "RecipeOptions": {
        "format": None,
        "split": None,
        "config": None,
        "revision": None,
        "data_files": None,
        "cache_dir": None,
        "on_bad": "stop",
        "max_bad": None,
        "quarantine": None,
        "options": {},
        "tokenizer": None,
        "template": "auto",
        "num_proc": None,
        "engine": "local",
        "refresh": False,
        "cache": True,
        "background": False,
        "fan_out": False,
        "progress": "auto",
        "batch_size": None,
        "epochs": 1,
        "rank": None,
        "world_size": None,
        "model_parallel_size": 1,
        "mesh": None,
        "run_id": None,
        "prefetch": 2,
        "media_threads": 4,
        "media_bytes": 1073741824,
        "mirror_bytes": None,
        "max_dropped": 0.5,
        "per_epoch": False,
        "skip_steps": (),
        "schedule": None,
        "interpolate": False,
        "collate": None,
        "max_length": 4096,
        "packing": "mixed_fit",
        "on_overlong": "drop",
        "shuffle": True,
        "shuffle_window": "auto",
        "seed": 0,
        "last_step": "pad",
        "mix_by": None,
        "stopping_strategy": None,
        "block": 65536,
        "overlap": False,
        "align": 1,
        "max_per_row": None,
        "balance": "rank",
        "balance_rows": 256,
        "cost_attention": 1,
        "cost_linear": 24576,
        "output": "torch",
        "padding_free": False,
        "padding": "longest",
        "pad_side": "right",
        "pad_to_multiple_of": 1,
        "pad_token_id": 0,
        "labels": "unshifted",
        "max_segments": None,
        "attention_mask": "auto",
        "documents": "apart",
        "pin_memory": False,
        "use_cache": False,
        "chat": None,
        "chat_template": None,
        "train_on": Ellipsis,
        "train_reasoning": True,
        "chat_template_kwargs": None,
        "today": "2025-01-01",
        "message_weights": False,
        "verify": "first",
        "on_refused": "stop",
        "on_missing_tokens": "stop",
        "on_nothing": "drop",
        "on_unrendered": "warn",
        "on_unanswered": "keep",
        "special_in_text": "token",
        "messages_key": None,
        "role_key": None,
        "content_key": None,
        "instruction_key": "instruction",
        "input_key": Ellipsis,
        "output_key": None,
        "history_key": "history",
        "tool_key": "tools",
        "system_key": ("system", "system_prompt"),
        "documents_key": "documents",
        "kwargs_key": "chat_template_kwargs",
        "role_map": None,
        "tool_arguments": "parse",
        "content_parts": "list",
        "nulls": "drop",
        "separator": Ellipsis,
        "processor": None,
        "media_root": None,
        "media_folders": None,
        "on_media": "stop",
        "max_image_pixels": 89478485,
        "bos": None,
        "eos": Ellipsis,
        "key": Ellipsis,
        "labels_key": "labels",
        "mask_key": None,
        "ignore_index": -100,
        "vocab_size": None,
        "chosen_key": None,
        "rejected_key": None,
        "margin_key": None,
        "desirable_key": None,
        "completions_key": "completions",
        "data": None,
        "eval": None,
    },
    "PromptOptions": {
        "repeats": 8,
        "epochs": None,
        "max_length": None,
        "lease": None,
        "part": "train",
        "filter": None,
        "filter_version": None,
        "num_proc": None,
        "seed": 0,
        "shuffle": True,
        "shuffle_window": "auto",
        "on_overlong": "drop",
        "mix_by": None,
        "stopping_strategy": None,
        "block": 65536,
    },
}
