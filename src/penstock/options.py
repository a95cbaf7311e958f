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
        webdataset, megatron, token_bin, datatrove, mds, litdata, hf, pt, parquet_chunks,
        media_folder, sample_folder, yaml; of agent traces: agent_trace, claude_code, codex, pi,
        droid, hermes, atif, harmony, swe_smith, harbor.
    split: Split of a dataset folder, such as train or train[:10%].
    config: Configuration of a dataset on the hub, if it has several.
    revision: Branch, tag or commit of a dataset on the hub; default: main.
    data_files: Files of a dataset on the hub: patterns, or patterns by split.
    name: Name of the source; default: its file or folder.
    cache_dir: The cache: a folder, or a URL in a bucket; default: $PENSTOCK_CACHE, or the cache
        folder of the platform.
    on_bad: What to do with a record that cannot be read: stop, skip or quarantine.
    max_bad: Maximum number of bad records.
    quarantine: File that bad records are written to.
    filter: A function over records, as module:function; records for which it returns false are left
        out and counted.
    filter_version: Have the answers of the filter remembered; raise it when something changes that
        the function uses.
    max_row_bytes: The largest record that is read, in bytes, with its line end and the blank lines
        that follow.
    max_expansion: How many times its size a compressed file may have when it is unpacked.
    unique_keys: Refuse a JSON object that has a key twice, with a slower parser; else the last one
        wins.
    field: Of JSON: the key that the list of records is under, if there are several.
    delimiter: Of CSV: what separates columns; else a comma, or a tab in .tsv files.
    names: Of CSV: the columns, if the file has no header.
    types: Of CSV: column → int, float, bool or json; an empty cell is then null.
    quotes: Of CSV: false makes a quote a character like any other.
    record: For text: line, paragraph, file, or the text that separates records, such as an end-of-
        text mark.
    keep_blank: For text: records of nothing but whitespace are records too.
    columns: Of Parquet and Arrow: the columns to read; they keep the file's order.
    json_columns: Of Parquet and Arrow: columns that hold JSON as text, which becomes values.
    nulls: Of Parquet, Arrow and datasets: deep removes the nulls that the schema added, keep leaves
        them.
    cache_bytes: Of Parquet and Arrow: decoded bytes that are kept in memory.
    sample: Of Megatron: a record is one sequence, or one document; needed where documents have
        several sequences.
    dtype: For raw tokens: the type of the ids, if no header says it.
    eot: For raw tokens: the id of the end-of-text token.
    eot_at: For raw tokens: whether a text has it at its end or start, as llm.c writes it.
    arrays: Of MDS: types of the columns with the encoding bytes that hold arrays, such as {tokens:
        int64}.
    merge_json: Of WebDataset: members of the object in .json are fields of the record, else it is
        the field json.
    secrets: For agent traces: what to do with keys, tokens and names in home folders: mask (each is
        counted), keep, or refuse.
    on_unknown: For agent traces: what to do with events of an unknown kind: stop, or skip, which
        counts them.
    version: For an iterable: with it and a name, what was read of it is kept and found again.
    spool_bytes: For an iterable: an error when so many bytes of it are on disk.
    plugin_options: Settings of other packages' plugins, by the name of the plugin.
    """

    format: str | None
    """File format, if file names do not show it: jsonl, json, csv, text, parquet, arrow,
    webdataset, megatron, token_bin, datatrove, mds, litdata, hf, pt, parquet_chunks, media_folder,
    sample_folder, yaml; of agent traces: agent_trace, claude_code, codex, pi, droid, hermes, atif,
    harmony, swe_smith, harbor."""
    split: str | None
    """Split of a dataset folder, such as train or train[:10%]."""
    config: str | None
    """Configuration of a dataset on the hub, if it has several."""
    revision: str | None
    """Branch, tag or commit of a dataset on the hub; default: main."""
    data_files: str | list[Any] | dict[str, Any] | None
    """Files of a dataset on the hub: patterns, or patterns by split."""
    name: str | None
    """Name of the source; default: its file or folder."""
    cache_dir: str | PathLike[str] | None
    """The cache: a folder, or a URL in a bucket; default: $PENSTOCK_CACHE, or the cache folder of
    the platform."""
    on_bad: Literal["stop", "skip", "quarantine"]
    """What to do with a record that cannot be read: stop, skip or quarantine."""
    max_bad: int | None
    """Maximum number of bad records."""
    quarantine: str | PathLike[str] | None
    """File that bad records are written to."""
    filter: str | Callable[..., Any] | None
    """A function over records, as module:function; records for which it returns false are left out
    and counted."""
    filter_version: str | int | None
    """Have the answers of the filter remembered; raise it when something changes that the function
    uses."""
    max_row_bytes: int
    """The largest record that is read, in bytes, with its line end and the blank lines that
    follow."""
    max_expansion: int
    """How many times its size a compressed file may have when it is unpacked."""
    unique_keys: bool
    """Refuse a JSON object that has a key twice, with a slower parser; else the last one wins."""
    field: str | None
    """Of JSON: the key that the list of records is under, if there are several."""
    delimiter: str | None
    """Of CSV: what separates columns; else a comma, or a tab in .tsv files."""
    names: Sequence[str] | None
    """Of CSV: the columns, if the file has no header."""
    types: Mapping[str, str] | None
    """Of CSV: column → int, float, bool or json; an empty cell is then null."""
    quotes: bool
    """Of CSV: false makes a quote a character like any other."""
    record: str
    """For text: line, paragraph, file, or the text that separates records, such as an end-of-text
    mark."""
    keep_blank: bool
    """For text: records of nothing but whitespace are records too."""
    columns: Sequence[str] | None
    """Of Parquet and Arrow: the columns to read; they keep the file's order."""
    json_columns: Sequence[str]
    """Of Parquet and Arrow: columns that hold JSON as text, which becomes values."""
    nulls: str
    """Of Parquet, Arrow and datasets: deep removes the nulls that the schema added, keep leaves
    them."""
    cache_bytes: int
    """Of Parquet and Arrow: decoded bytes that are kept in memory."""
    sample: str | None
    """Of Megatron: a record is one sequence, or one document; needed where documents have several
    sequences."""
    dtype: str | None
    """For raw tokens: the type of the ids, if no header says it."""
    eot: int | None
    """For raw tokens: the id of the end-of-text token."""
    eot_at: str | None
    """For raw tokens: whether a text has it at its end or start, as llm.c writes it."""
    arrays: Mapping[str, str] | None
    """Of MDS: types of the columns with the encoding bytes that hold arrays, such as {tokens:
    int64}."""
    merge_json: bool
    """Of WebDataset: members of the object in .json are fields of the record, else it is the field
    json."""
    secrets: str
    """For agent traces: what to do with keys, tokens and names in home folders: mask (each is
    counted), keep, or refuse."""
    on_unknown: str
    """For agent traces: what to do with events of an unknown kind: stop, or skip, which counts
    them."""
    version: str | int | None
    """For an iterable: with it and a name, what was read of it is kept and found again."""
    spool_bytes: int
    """For an iterable: an error when so many bytes of it are on disk."""
    plugin_options: Mapping[str, Mapping[str, Any]] | None
    """Settings of other packages' plugins, by the name of the plugin."""


class PrepareOptions(TypedDict, total=False):
    """Keyword arguments of `penstock.prepare`.

    tokenizer: A folder, a tokenizer.json, a URL of one of these, or a name on the hub.
    template: How records become samples; auto detects it from the data.
    name: Name of the store; default: that of its source.
    cache_dir: The cache: a folder, or a URL in a bucket; default: $PENSTOCK_CACHE, or the cache
        folder of the platform.
    num_proc: Number of processes; default: all cores, shared with other local ranks.
    engine: What runs the work: local, ray, ray://host:port, or an Engine object.
    refresh: Prepare every shard again.
    cache: False keeps no prepared shards on disk, whatever cache_dir is.
    background: Prepare shards while they are used; needs a small shuffle_window, or no shuffle.
    fan_out: Write one sample for each trained turn, which ends with that turn.
    progress: Auto (a bar or lines), plain, none, or a function.
    chat: Render prompt and answer with the chat template; null: query_response only, if the
        tokenizer has a chat template (prompt_completion, query_response); render plain text with
        the chat template, too; null: messages and questions only, as in trl (preference, kto,
        prompt).
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
    input_key: Column with the input of an instruction (messages); column with the prompt
        (prompt_completion, query_response, preference, kto, stepwise, prompt); column with the ids
        (pretokenized).
    output_key: Column with the answer (messages, prompt_completion, query_response); column with
        the answer that is judged (kto).
    history_key: Column with earlier turns.
    tool_key: Column with the tools.
    system_key: Column with a system prompt.
    documents_key: Column with documents.
    kwargs_key: Column with a record's own variables for the chat template.
    role_map: Role → other names of this role.
    tool_arguments: Arguments of tool calls: parse (JSON text becomes a mapping), text or as_is.
    content_parts: Content in parts: list passes the list to the template, text joins it.
    nulls: Keys of a message that hold null: drop, deep (in tools and calls too) or keep.
    separator: Text between instruction and input (messages); text between prompt and answer
        (prompt_completion, query_response); text after each step (stepwise).
    processor: Folder of the model's processor, for images, video and audio; else the tokenizer's
        folder, if a sampled record has media; or none.
    media_root: Folder or URL that paths of images, video and audio are relative to; else the folder
        of the data.
    media_folders: More folders, or URLs, that media may be read from; else only media_root and the
        folders of the data; / allows every folder.
    on_media: What `prepare` does with a record whose image, video or audio is missing, broken or in
        no place: stop or skip; mask stops, too: on_broken_media decides what happens to media that
        break later.
    multimodal_keys: Columns that list media, by kind, such as {image: image_file}; else image or
        images, and so on.
    video_options: Which frames of a video are sampled, and their size, in place of the processor's
        files: fps or num_frames, min_frames, max_frames, min_pixels, max_pixels.
    max_image_pixels: Larger images are refused, as decompression bombs.
    bos: Add a beginning token: true, false, the token itself, or null for what the tokenizer does.
    eos: Add an end token: true, false, the token itself, or null for what the tokenizer does.
    key: Column with the text (text); column with the list of segments (segments).
    labels_key: Column with the labels of the ids (pretokenized); column with the labels of the
        steps (stepwise).
    mask_key: Column with the loss mask; null finds labels, loss_mask, assistant_masks or
        completion_mask.
    ignore_index: Label of tokens that are not trained.
    vocab_size: Number of ids, if no tokenizer is given.
    chosen_key: Column with the chosen answer.
    rejected_key: Column with the rejected answer.
    margin_key: Column with the margin of a pair, for a reward model.
    desirable_key: Column that says whether the answer is desirable.
    completions_key: Column with the list of steps.
    reward_key: Column with what the reward compares rollouts with: it makes no token, and workers
        get it as prompt.label.
    plugin_options: Settings of other packages' plugins, by the name of the plugin.
    """

    tokenizer: Any
    """A folder, a tokenizer.json, a URL of one of these, or a name on the hub."""
    template: str | Template | UnopenedTemplate
    """How records become samples; auto detects it from the data."""
    name: str | None
    """Name of the store; default: that of its source."""
    cache_dir: str | PathLike[str] | None
    """The cache: a folder, or a URL in a bucket; default: $PENSTOCK_CACHE, or the cache folder of
    the platform."""
    num_proc: int | None
    """Number of processes; default: all cores, shared with other local ranks."""
    engine: str | Engine
    """What runs the work: local, ray, ray://host:port, or an Engine object."""
    refresh: bool
    """Prepare every shard again."""
    cache: bool
    """False keeps no prepared shards on disk, whatever cache_dir is."""
    background: bool
    """Prepare shards while they are used; needs a small shuffle_window, or no shuffle."""
    fan_out: bool
    """Write one sample for each trained turn, which ends with that turn."""
    progress: str | Callable[[Progress], object]
    """Auto (a bar or lines), plain, none, or a function."""
    chat: bool | None
    """Render prompt and answer with the chat template; null: query_response only, if the tokenizer
    has a chat template (prompt_completion, query_response); render plain text with the chat
    template, too; null: messages and questions only, as in trl (preference, kto, prompt)."""
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
    """Column with the input of an instruction (messages); column with the prompt
    (prompt_completion, query_response, preference, kto, stepwise, prompt); column with the ids
    (pretokenized)."""
    output_key: str | None
    """Column with the answer (messages, prompt_completion, query_response); column with the answer
    that is judged (kto)."""
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
    """Text between instruction and input (messages); text between prompt and answer
    (prompt_completion, query_response); text after each step (stepwise)."""
    processor: str | None
    """Folder of the model's processor, for images, video and audio; else the tokenizer's folder, if
    a sampled record has media; or none."""
    media_root: str | None
    """Folder or URL that paths of images, video and audio are relative to; else the folder of the
    data."""
    media_folders: str | Sequence[str] | None
    """More folders, or URLs, that media may be read from; else only media_root and the folders of
    the data; / allows every folder."""
    on_media: str
    """What `prepare` does with a record whose image, video or audio is missing, broken or in no
    place: stop or skip; mask stops, too: on_broken_media decides what happens to media that break
    later."""
    multimodal_keys: Mapping[str, str] | None
    """Columns that list media, by kind, such as {image: image_file}; else image or images, and so
    on."""
    video_options: Mapping[str, Any] | None
    """Which frames of a video are sampled, and their size, in place of the processor's files: fps
    or num_frames, min_frames, max_frames, min_pixels, max_pixels."""
    max_image_pixels: int
    """Larger images are refused, as decompression bombs."""
    bos: bool | str | None
    """Add a beginning token: true, false, the token itself, or null for what the tokenizer does."""
    eos: bool | str | None
    """Add an end token: true, false, the token itself, or null for what the tokenizer does."""
    key: str
    """Column with the text (text); column with the list of segments (segments)."""
    labels_key: str
    """Column with the labels of the ids (pretokenized); column with the labels of the steps
    (stepwise)."""
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
    reward_key: str | None
    """Column with what the reward compares rollouts with: it makes no token, and workers get it as
    prompt.label."""
    plugin_options: Mapping[str, Mapping[str, Any]] | None
    """Settings of other packages' plugins, by the name of the plugin."""


class LoaderOptions(TypedDict, total=False):
    """Keyword arguments of `penstock.Loader`.

    batch_size: Rows per rank and step.
    epochs: Number of passes over the data, also a part of one, such as 0.5 or 2.5: so much of the
        rows of the last epoch; null never ends.
    max_steps: End after so many steps, steps that skip_steps names among them.
    max_tokens: End before the row with which all ranks together would have more than so many
        tokens, counted along the order, without padding.
    tokens_per_step: With packing: none, tokens of a step of all ranks at most, with their padding:
        a step takes as many rows as fit, and batch_size is the most that a rank gets.
    rank: Which rank this is.
    world_size: How many ranks there are.
    model_parallel_size: Number of neighbouring ranks that get the same rows.
    mesh: A device mesh with named dimensions, instead of ranks: dp, dp_replicate, dp_shard and the
        like get different rows, ranks that differ only in tp, cp, sp or pp the same; or its data-
        parallel dimension, as mesh['dp'].
    run_id: The name of the run in the cache: penstock view shows it there.
    prefetch: Number of steps that a thread prepares ahead; a few more if steps are small.
    max_dropped: The share of a dataset's records, or of its tokens, that may never reach a batch:
        records that give no sample, and samples that max_length drops; above it the Loader refuses
        and `check` fails; 1 allows everything.
    per_epoch: End each iteration with its epoch, for trainers that loop over epochs.
    skip_steps: Numbers of steps to skip.
    schedule: Unit of the points in a table of weights: steps (the default) or tokens (a row counts
        as max_length).
    interpolate: Change weights between two points of a table in 16 equal stages instead of at once.
    collate: For plain records, makes a batch of a list of them; for tokens, is given the arrays of
        a batch and its rows (their spans say source, sample, start, stop) and returns the arrays to
        deliver.
    max_length: Tokens per row; of pairs, tokens of each of the two sequences.
    packing: How samples share a row: mixed_fit, best_fit, first_fit, next_fit, window_N, concat,
        none, group_N.
    on_overlong: What to do with samples longer than max_length: drop, truncate, split or error.
    shuffle: Whether each epoch has a new random order.
    shuffle_window: Shards shuffled together: auto (all; 1,024 at a time where there are more), all,
        or a number.
    seed: Decides the order: the same seed gives the same order.
    last_step: What to do with a last step of an epoch that is not full: pad, drop, repeat, error or
        wrap.
    mix_by: Whether weights are shares of samples (the default) or of tokens.
    stopping_strategy: When an epoch with weights ends: first_exhausted (the default) when one
        dataset ends, all_exhausted when all have.
    block: Number of samples that are packed as a unit.
    overlap: With packing: concat, each row begins with the last token of the row before, so that it
        predicts this row's first new token.
    align: Pad each sample to a multiple of this many tokens in its row.
    max_per_row: Maximum number of samples per row.
    balance: Rank assigns the rows of a step to ranks by cost, so that ranks finish together; none
        assigns them round-robin; block also puts rows of similar cost into the same step.
    balance_rows: With balance: block, the number of rows of similar cost that stay together; a few
        times the rows of a step is good.
    cost_attention: Weight of attention in the cost of a row: this × the sum of the squared lengths
        of its samples; 0 for models without attention.
    cost_linear: Weight of the linear layers in the cost of a row: this × its tokens; set it to 6 ×
        the model's hidden size (the default is for 4,096).
    objective: What a sample becomes on its way into a row, again in each epoch: the name of an
        objective, such as fim, span_corruption, masked_diffusion or bpe_dropout, or a mapping of
        its name and settings; null: samples stay as they were prepared.
    output: Torch, numpy, or jax (int32 arrays; `segment_ids` instead of `seq_idx`; `cu_seqlens`
        only with max_segments).
    padding_free: Deliver one flat row of all tokens.
    padding: Length of unpacked rows: the longest sample of the batch, or max_length.
    pad_side: Side of the padding: right or left.
    pad_to_multiple_of: Pad the length of rows to a multiple of this.
    pad_token_id: Token id of padding.
    labels: Labels as they are (unshifted), or moved by one for models that do not shift.
    max_segments: Maximum number of samples and paddings per batch; `cu_seqlens` then always has
        max_segments + 1 values, the last one repeated.
    attention_mask: Auto (a plain mask for unpacked rows), none, or 4d (block-diagonal and causal).
    documents: Apart: attention, positions and targets stay inside a document (sample); joined, with
        packing: concat: they run through the row.
    pin_memory: Put tensors into pinned memory.
    use_cache: Batches with several samples in a row carry `use_cache=False`: with a cache, models
        of transformers ignore where positions restart; null leaves it out, for models that do not
        take it.
    media_threads: Number of threads that decode images.
    media_bytes: Maximum bytes of media that are decoded ahead; a step with more is decoded alone.
    on_broken_media: What to do with an image, video or audio clip that cannot be read when its
        batch is made: mask (it is named and counted, and no token of its sample is trained) or
        stop.
    mirror_bytes: For a cache in a bucket, the bytes of shards that this machine keeps; default:
        $PENSTOCK_MIRROR_BYTES, or 10 % of the free disk.
    context_split: Each rank of a context-parallel group gets a part of every row: contiguous (one
        piece, as Ulysses takes it), zigzag (two pieces, so that all ranks have as much to compute,
        as Megatron and ring attention take them), or striped (every n-th token).
    context_unit: What context_split divides: row, or document, each document (sample) of a row by
        itself.
    context_size: Ranks of a context-parallel group; null reads them from mesh= or from Megatron's
        parallel state.
    context_rank: This rank in its context-parallel group; null reads it from mesh=, from Megatron's
        parallel state, or from model_parallel_size of the same size.
    future_labels: For multi-token prediction: labels of so many tokens after the next one, in the
        array future_labels (rows, depth, length); a label never crosses the border of a document.
    plugin_options: Settings of other packages' plugins, by the name of the plugin.
    """

    batch_size: Required[int]
    """Rows per rank and step."""
    epochs: float | None
    """Number of passes over the data, also a part of one, such as 0.5 or 2.5: so much of the rows
    of the last epoch; null never ends."""
    max_steps: int | None
    """End after so many steps, steps that skip_steps names among them."""
    max_tokens: int | None
    """End before the row with which all ranks together would have more than so many tokens, counted
    along the order, without padding."""
    tokens_per_step: int | None
    """With packing: none, tokens of a step of all ranks at most, with their padding: a step takes
    as many rows as fit, and batch_size is the most that a rank gets."""
    rank: int | None
    """Which rank this is."""
    world_size: int | None
    """How many ranks there are."""
    model_parallel_size: int
    """Number of neighbouring ranks that get the same rows."""
    mesh: Any
    """A device mesh with named dimensions, instead of ranks: dp, dp_replicate, dp_shard and the
    like get different rows, ranks that differ only in tp, cp, sp or pp the same; or its data-
    parallel dimension, as mesh['dp']."""
    run_id: str | None
    """The name of the run in the cache: penstock view shows it there."""
    prefetch: int
    """Number of steps that a thread prepares ahead; a few more if steps are small."""
    max_dropped: float
    """The share of a dataset's records, or of its tokens, that may never reach a batch: records
    that give no sample, and samples that max_length drops; above it the Loader refuses and `check`
    fails; 1 allows everything."""
    per_epoch: bool
    """End each iteration with its epoch, for trainers that loop over epochs."""
    skip_steps: Iterable[int]
    """Numbers of steps to skip."""
    schedule: Literal["steps", "tokens"] | None
    """Unit of the points in a table of weights: steps (the default) or tokens (a row counts as
    max_length)."""
    interpolate: bool
    """Change weights between two points of a table in 16 equal stages instead of at once."""
    collate: Callable[..., Any] | None
    """For plain records, makes a batch of a list of them; for tokens, is given the arrays of a
    batch and its rows (their spans say source, sample, start, stop) and returns the arrays to
    deliver."""
    max_length: int
    """Tokens per row; of pairs, tokens of each of the two sequences."""
    packing: str
    """How samples share a row: mixed_fit, best_fit, first_fit, next_fit, window_N, concat, none,
    group_N."""
    on_overlong: Literal["drop", "truncate", "split", "error"]
    """What to do with samples longer than max_length: drop, truncate, split or error."""
    shuffle: bool
    """Whether each epoch has a new random order."""
    shuffle_window: int | Literal["auto", "all"]
    """Shards shuffled together: auto (all; 1,024 at a time where there are more), all, or a
    number."""
    seed: int
    """Decides the order: the same seed gives the same order."""
    last_step: Literal["pad", "drop", "repeat", "error", "wrap"]
    """What to do with a last step of an epoch that is not full: pad, drop, repeat, error or
    wrap."""
    mix_by: Literal["samples", "tokens"] | None
    """Whether weights are shares of samples (the default) or of tokens."""
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] | None
    """When an epoch with weights ends: first_exhausted (the default) when one dataset ends,
    all_exhausted when all have."""
    block: int
    """Number of samples that are packed as a unit."""
    overlap: bool
    """With packing: concat, each row begins with the last token of the row before, so that it
    predicts this row's first new token."""
    align: int
    """Pad each sample to a multiple of this many tokens in its row."""
    max_per_row: int | None
    """Maximum number of samples per row."""
    balance: Literal["none", "rank", "block"]
    """Rank assigns the rows of a step to ranks by cost, so that ranks finish together; none assigns
    them round-robin; block also puts rows of similar cost into the same step."""
    balance_rows: int
    """With balance: block, the number of rows of similar cost that stay together; a few times the
    rows of a step is good."""
    cost_attention: int
    """Weight of attention in the cost of a row: this × the sum of the squared lengths of its
    samples; 0 for models without attention."""
    cost_linear: int
    """Weight of the linear layers in the cost of a row: this × its tokens; set it to 6 × the
    model's hidden size (the default is for 4,096)."""
    objective: Mapping[str, Any] | str | None
    """What a sample becomes on its way into a row, again in each epoch: the name of an objective,
    such as fim, span_corruption, masked_diffusion or bpe_dropout, or a mapping of its name and
    settings; null: samples stay as they were prepared."""
    output: Literal["numpy", "torch", "jax"]
    """Torch, numpy, or jax (int32 arrays; `segment_ids` instead of `seq_idx`; `cu_seqlens` only
    with max_segments)."""
    padding_free: bool
    """Deliver one flat row of all tokens."""
    padding: Literal["longest", "max_length"]
    """Length of unpacked rows: the longest sample of the batch, or max_length."""
    pad_side: Literal["right", "left"]
    """Side of the padding: right or left."""
    pad_to_multiple_of: int
    """Pad the length of rows to a multiple of this."""
    pad_token_id: int
    """Token id of padding."""
    labels: Literal["unshifted", "shifted"]
    """Labels as they are (unshifted), or moved by one for models that do not shift."""
    max_segments: int | None
    """Maximum number of samples and paddings per batch; `cu_seqlens` then always has max_segments +
    1 values, the last one repeated."""
    attention_mask: Literal["auto", "none", "4d"]
    """Auto (a plain mask for unpacked rows), none, or 4d (block-diagonal and causal)."""
    documents: Literal["apart", "joined"]
    """Apart: attention, positions and targets stay inside a document (sample); joined, with
    packing: concat: they run through the row."""
    pin_memory: bool
    """Put tensors into pinned memory."""
    use_cache: bool | None
    """Batches with several samples in a row carry `use_cache=False`: with a cache, models of
    transformers ignore where positions restart; null leaves it out, for models that do not take
    it."""
    media_threads: int
    """Number of threads that decode images."""
    media_bytes: int
    """Maximum bytes of media that are decoded ahead; a step with more is decoded alone."""
    on_broken_media: Literal["mask", "stop"]
    """What to do with an image, video or audio clip that cannot be read when its batch is made:
    mask (it is named and counted, and no token of its sample is trained) or stop."""
    mirror_bytes: int | None
    """For a cache in a bucket, the bytes of shards that this machine keeps; default:
    $PENSTOCK_MIRROR_BYTES, or 10 % of the free disk."""
    context_split: Literal["contiguous", "zigzag", "striped"] | None
    """Each rank of a context-parallel group gets a part of every row: contiguous (one piece, as
    Ulysses takes it), zigzag (two pieces, so that all ranks have as much to compute, as Megatron
    and ring attention take them), or striped (every n-th token)."""
    context_unit: Literal["row", "document"]
    """What context_split divides: row, or document, each document (sample) of a row by itself."""
    context_size: int | None
    """Ranks of a context-parallel group; null reads them from mesh= or from Megatron's parallel
    state."""
    context_rank: int | None
    """This rank in its context-parallel group; null reads it from mesh=, from Megatron's parallel
    state, or from model_parallel_size of the same size."""
    future_labels: int
    """For multi-token prediction: labels of so many tokens after the next one, in the array
    future_labels (rows, depth, length); a label never crosses the border of a document."""
    plugin_options: Mapping[str, Mapping[str, Any]] | None
    """Settings of other packages' plugins, by the name of the plugin."""


class RecipeOptions(TypedDict, total=False):
    """Keys of a recipe, which `penstock.load` takes in place of what the file says.

    format: File format, if file names do not show it: jsonl, json, csv, text, parquet, arrow,
        webdataset, megatron, token_bin, datatrove, mds, litdata, hf, pt, parquet_chunks,
        media_folder, sample_folder, yaml; of agent traces: agent_trace, claude_code, codex, pi,
        droid, hermes, atif, harmony, swe_smith, harbor.
    split: Split of a dataset folder, such as train or train[:10%].
    config: Configuration of a dataset on the hub, if it has several.
    revision: Branch, tag or commit of a dataset on the hub; default: main.
    data_files: Files of a dataset on the hub: patterns, or patterns by split.
    cache_dir: The cache: a folder, or a URL in a bucket; default: $PENSTOCK_CACHE, or the cache
        folder of the platform.
    on_bad: What to do with a record that cannot be read: stop, skip or quarantine.
    max_bad: Maximum number of bad records.
    quarantine: File that bad records are written to.
    filter: A function over records, as module:function; records for which it returns false are left
        out and counted.
    filter_version: Have the answers of the filter remembered; raise it when something changes that
        the function uses.
    options: Options of the file format, such as columns, delimiter or record.
    tokenizer: A folder, a tokenizer.json, a URL of one of these, or a name on the hub.
    template: How records become samples; auto detects it from the data.
    num_proc: Number of processes; default: all cores, shared with other local ranks.
    engine: What runs the work: local, ray, ray://host:port, or an Engine object.
    refresh: Prepare every shard again.
    cache: False keeps no prepared shards on disk, whatever cache_dir is.
    background: Prepare shards while they are used; needs a small shuffle_window, or no shuffle.
    fan_out: Write one sample for each trained turn, which ends with that turn.
    progress: Auto (a bar or lines), plain, none, or a function.
    batch_size: Rows per rank and step.
    epochs: Number of passes over the data, also a part of one, such as 0.5 or 2.5: so much of the
        rows of the last epoch; null never ends.
    max_steps: End after so many steps, steps that skip_steps names among them.
    max_tokens: End before the row with which all ranks together would have more than so many
        tokens, counted along the order, without padding.
    tokens_per_step: With packing: none, tokens of a step of all ranks at most, with their padding:
        a step takes as many rows as fit, and batch_size is the most that a rank gets.
    rank: Which rank this is.
    world_size: How many ranks there are.
    model_parallel_size: Number of neighbouring ranks that get the same rows.
    mesh: A device mesh with named dimensions, instead of ranks: dp, dp_replicate, dp_shard and the
        like get different rows, ranks that differ only in tp, cp, sp or pp the same; or its data-
        parallel dimension, as mesh['dp'].
    run_id: The name of the run in the cache: penstock view shows it there.
    prefetch: Number of steps that a thread prepares ahead; a few more if steps are small.
    max_dropped: The share of a dataset's records, or of its tokens, that may never reach a batch:
        records that give no sample, and samples that max_length drops; above it the Loader refuses
        and `check` fails; 1 allows everything.
    per_epoch: End each iteration with its epoch, for trainers that loop over epochs.
    skip_steps: Numbers of steps to skip.
    schedule: Unit of the points in a table of weights: steps (the default) or tokens (a row counts
        as max_length).
    interpolate: Change weights between two points of a table in 16 equal stages instead of at once.
    collate: For plain records, makes a batch of a list of them; for tokens, is given the arrays of
        a batch and its rows (their spans say source, sample, start, stop) and returns the arrays to
        deliver.
    max_length: Tokens per row; of pairs, tokens of each of the two sequences.
    packing: How samples share a row: mixed_fit, best_fit, first_fit, next_fit, window_N, concat,
        none, group_N.
    on_overlong: What to do with samples longer than max_length: drop, truncate, split or error.
    shuffle: Whether each epoch has a new random order.
    shuffle_window: Shards shuffled together: auto (all; 1,024 at a time where there are more), all,
        or a number.
    seed: Decides the order: the same seed gives the same order.
    last_step: What to do with a last step of an epoch that is not full: pad, drop, repeat, error or
        wrap.
    mix_by: Whether weights are shares of samples (the default) or of tokens.
    stopping_strategy: When an epoch with weights ends: first_exhausted (the default) when one
        dataset ends, all_exhausted when all have.
    block: Number of samples that are packed as a unit.
    overlap: With packing: concat, each row begins with the last token of the row before, so that it
        predicts this row's first new token.
    align: Pad each sample to a multiple of this many tokens in its row.
    max_per_row: Maximum number of samples per row.
    balance: Rank assigns the rows of a step to ranks by cost, so that ranks finish together; none
        assigns them round-robin; block also puts rows of similar cost into the same step.
    balance_rows: With balance: block, the number of rows of similar cost that stay together; a few
        times the rows of a step is good.
    cost_attention: Weight of attention in the cost of a row: this × the sum of the squared lengths
        of its samples; 0 for models without attention.
    cost_linear: Weight of the linear layers in the cost of a row: this × its tokens; set it to 6 ×
        the model's hidden size (the default is for 4,096).
    objective: What a sample becomes on its way into a row, again in each epoch: the name of an
        objective, such as fim, span_corruption, masked_diffusion or bpe_dropout, or a mapping of
        its name and settings; null: samples stay as they were prepared.
    output: Torch, numpy, or jax (int32 arrays; `segment_ids` instead of `seq_idx`; `cu_seqlens`
        only with max_segments).
    padding_free: Deliver one flat row of all tokens.
    padding: Length of unpacked rows: the longest sample of the batch, or max_length.
    pad_side: Side of the padding: right or left.
    pad_to_multiple_of: Pad the length of rows to a multiple of this.
    pad_token_id: Token id of padding.
    labels: Labels as they are (unshifted), or moved by one for models that do not shift.
    max_segments: Maximum number of samples and paddings per batch; `cu_seqlens` then always has
        max_segments + 1 values, the last one repeated.
    attention_mask: Auto (a plain mask for unpacked rows), none, or 4d (block-diagonal and causal).
    documents: Apart: attention, positions and targets stay inside a document (sample); joined, with
        packing: concat: they run through the row.
    pin_memory: Put tensors into pinned memory.
    use_cache: Batches with several samples in a row carry `use_cache=False`: with a cache, models
        of transformers ignore where positions restart; null leaves it out, for models that do not
        take it.
    media_threads: Number of threads that decode images.
    media_bytes: Maximum bytes of media that are decoded ahead; a step with more is decoded alone.
    on_broken_media: What to do with an image, video or audio clip that cannot be read when its
        batch is made: mask (it is named and counted, and no token of its sample is trained) or
        stop.
    mirror_bytes: For a cache in a bucket, the bytes of shards that this machine keeps; default:
        $PENSTOCK_MIRROR_BYTES, or 10 % of the free disk.
    context_split: Each rank of a context-parallel group gets a part of every row: contiguous (one
        piece, as Ulysses takes it), zigzag (two pieces, so that all ranks have as much to compute,
        as Megatron and ring attention take them), or striped (every n-th token).
    context_unit: What context_split divides: row, or document, each document (sample) of a row by
        itself.
    context_size: Ranks of a context-parallel group; null reads them from mesh= or from Megatron's
        parallel state.
    context_rank: This rank in its context-parallel group; null reads it from mesh=, from Megatron's
        parallel state, or from model_parallel_size of the same size.
    future_labels: For multi-token prediction: labels of so many tokens after the next one, in the
        array future_labels (rows, depth, length); a label never crosses the border of a document.
    chat: Render prompt and answer with the chat template; null: query_response only, if the
        tokenizer has a chat template (prompt_completion, query_response); render plain text with
        the chat template, too; null: messages and questions only, as in trl (preference, kto,
        prompt).
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
    input_key: Column with the input of an instruction (messages); column with the prompt
        (prompt_completion, query_response, preference, kto, stepwise, prompt); column with the ids
        (pretokenized).
    output_key: Column with the answer (messages, prompt_completion, query_response); column with
        the answer that is judged (kto).
    history_key: Column with earlier turns.
    tool_key: Column with the tools.
    system_key: Column with a system prompt.
    documents_key: Column with documents.
    kwargs_key: Column with a record's own variables for the chat template.
    role_map: Role → other names of this role.
    tool_arguments: Arguments of tool calls: parse (JSON text becomes a mapping), text or as_is.
    content_parts: Content in parts: list passes the list to the template, text joins it.
    nulls: Keys of a message that hold null: drop, deep (in tools and calls too) or keep.
    separator: Text between instruction and input (messages); text between prompt and answer
        (prompt_completion, query_response); text after each step (stepwise).
    processor: Folder of the model's processor, for images, video and audio; else the tokenizer's
        folder, if a sampled record has media; or none.
    media_root: Folder or URL that paths of images, video and audio are relative to; else the folder
        of the data.
    media_folders: More folders, or URLs, that media may be read from; else only media_root and the
        folders of the data; / allows every folder.
    on_media: What `prepare` does with a record whose image, video or audio is missing, broken or in
        no place: stop or skip; mask stops, too: on_broken_media decides what happens to media that
        break later.
    multimodal_keys: Columns that list media, by kind, such as {image: image_file}; else image or
        images, and so on.
    video_options: Which frames of a video are sampled, and their size, in place of the processor's
        files: fps or num_frames, min_frames, max_frames, min_pixels, max_pixels.
    max_image_pixels: Larger images are refused, as decompression bombs.
    bos: Add a beginning token: true, false, the token itself, or null for what the tokenizer does.
    eos: Add an end token: true, false, the token itself, or null for what the tokenizer does.
    key: Column with the text (text); column with the list of segments (segments).
    labels_key: Column with the labels of the ids (pretokenized); column with the labels of the
        steps (stepwise).
    mask_key: Column with the loss mask; null finds labels, loss_mask, assistant_masks or
        completion_mask.
    ignore_index: Label of tokens that are not trained.
    vocab_size: Number of ids, if no tokenizer is given.
    chosen_key: Column with the chosen answer.
    rejected_key: Column with the rejected answer.
    margin_key: Column with the margin of a pair, for a reward model.
    desirable_key: Column that says whether the answer is desirable.
    completions_key: Column with the list of steps.
    reward_key: Column with what the reward compares rollouts with: it makes no token, and workers
        get it as prompt.label.
    data: The datasets to train on.
    eval: The datasets to evaluate on.
    """

    format: str | None
    """File format, if file names do not show it: jsonl, json, csv, text, parquet, arrow,
    webdataset, megatron, token_bin, datatrove, mds, litdata, hf, pt, parquet_chunks, media_folder,
    sample_folder, yaml; of agent traces: agent_trace, claude_code, codex, pi, droid, hermes, atif,
    harmony, swe_smith, harbor."""
    split: str | None
    """Split of a dataset folder, such as train or train[:10%]."""
    config: str | None
    """Configuration of a dataset on the hub, if it has several."""
    revision: str | None
    """Branch, tag or commit of a dataset on the hub; default: main."""
    data_files: str | list[Any] | dict[str, Any] | None
    """Files of a dataset on the hub: patterns, or patterns by split."""
    cache_dir: str | PathLike[str] | None
    """The cache: a folder, or a URL in a bucket; default: $PENSTOCK_CACHE, or the cache folder of
    the platform."""
    on_bad: Literal["stop", "skip", "quarantine"]
    """What to do with a record that cannot be read: stop, skip or quarantine."""
    max_bad: int | None
    """Maximum number of bad records."""
    quarantine: str | PathLike[str] | None
    """File that bad records are written to."""
    filter: str | Callable[..., Any] | None
    """A function over records, as module:function; records for which it returns false are left out
    and counted."""
    filter_version: str | int | None
    """Have the answers of the filter remembered; raise it when something changes that the function
    uses."""
    options: dict[str, Any]
    """Options of the file format, such as columns, delimiter or record."""
    tokenizer: Any
    """A folder, a tokenizer.json, a URL of one of these, or a name on the hub."""
    template: str | Template | UnopenedTemplate
    """How records become samples; auto detects it from the data."""
    num_proc: int | None
    """Number of processes; default: all cores, shared with other local ranks."""
    engine: str | Engine
    """What runs the work: local, ray, ray://host:port, or an Engine object."""
    refresh: bool
    """Prepare every shard again."""
    cache: bool
    """False keeps no prepared shards on disk, whatever cache_dir is."""
    background: bool
    """Prepare shards while they are used; needs a small shuffle_window, or no shuffle."""
    fan_out: bool
    """Write one sample for each trained turn, which ends with that turn."""
    progress: str | Callable[[Progress], object]
    """Auto (a bar or lines), plain, none, or a function."""
    batch_size: int
    """Rows per rank and step."""
    epochs: float | None
    """Number of passes over the data, also a part of one, such as 0.5 or 2.5: so much of the rows
    of the last epoch; null never ends."""
    max_steps: int | None
    """End after so many steps, steps that skip_steps names among them."""
    max_tokens: int | None
    """End before the row with which all ranks together would have more than so many tokens, counted
    along the order, without padding."""
    tokens_per_step: int | None
    """With packing: none, tokens of a step of all ranks at most, with their padding: a step takes
    as many rows as fit, and batch_size is the most that a rank gets."""
    rank: int | None
    """Which rank this is."""
    world_size: int | None
    """How many ranks there are."""
    model_parallel_size: int
    """Number of neighbouring ranks that get the same rows."""
    mesh: Any
    """A device mesh with named dimensions, instead of ranks: dp, dp_replicate, dp_shard and the
    like get different rows, ranks that differ only in tp, cp, sp or pp the same; or its data-
    parallel dimension, as mesh['dp']."""
    run_id: str | None
    """The name of the run in the cache: penstock view shows it there."""
    prefetch: int
    """Number of steps that a thread prepares ahead; a few more if steps are small."""
    max_dropped: float
    """The share of a dataset's records, or of its tokens, that may never reach a batch: records
    that give no sample, and samples that max_length drops; above it the Loader refuses and `check`
    fails; 1 allows everything."""
    per_epoch: bool
    """End each iteration with its epoch, for trainers that loop over epochs."""
    skip_steps: Iterable[int]
    """Numbers of steps to skip."""
    schedule: Literal["steps", "tokens"] | None
    """Unit of the points in a table of weights: steps (the default) or tokens (a row counts as
    max_length)."""
    interpolate: bool
    """Change weights between two points of a table in 16 equal stages instead of at once."""
    collate: Callable[..., Any] | None
    """For plain records, makes a batch of a list of them; for tokens, is given the arrays of a
    batch and its rows (their spans say source, sample, start, stop) and returns the arrays to
    deliver."""
    max_length: int
    """Tokens per row; of pairs, tokens of each of the two sequences."""
    packing: str
    """How samples share a row: mixed_fit, best_fit, first_fit, next_fit, window_N, concat, none,
    group_N."""
    on_overlong: Literal["drop", "truncate", "split", "error"]
    """What to do with samples longer than max_length: drop, truncate, split or error."""
    shuffle: bool
    """Whether each epoch has a new random order."""
    shuffle_window: int | Literal["auto", "all"]
    """Shards shuffled together: auto (all; 1,024 at a time where there are more), all, or a
    number."""
    seed: int
    """Decides the order: the same seed gives the same order."""
    last_step: Literal["pad", "drop", "repeat", "error", "wrap"]
    """What to do with a last step of an epoch that is not full: pad, drop, repeat, error or
    wrap."""
    mix_by: Literal["samples", "tokens"] | None
    """Whether weights are shares of samples (the default) or of tokens."""
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] | None
    """When an epoch with weights ends: first_exhausted (the default) when one dataset ends,
    all_exhausted when all have."""
    block: int
    """Number of samples that are packed as a unit."""
    overlap: bool
    """With packing: concat, each row begins with the last token of the row before, so that it
    predicts this row's first new token."""
    align: int
    """Pad each sample to a multiple of this many tokens in its row."""
    max_per_row: int | None
    """Maximum number of samples per row."""
    balance: Literal["none", "rank", "block"]
    """Rank assigns the rows of a step to ranks by cost, so that ranks finish together; none assigns
    them round-robin; block also puts rows of similar cost into the same step."""
    balance_rows: int
    """With balance: block, the number of rows of similar cost that stay together; a few times the
    rows of a step is good."""
    cost_attention: int
    """Weight of attention in the cost of a row: this × the sum of the squared lengths of its
    samples; 0 for models without attention."""
    cost_linear: int
    """Weight of the linear layers in the cost of a row: this × its tokens; set it to 6 × the
    model's hidden size (the default is for 4,096)."""
    objective: Mapping[str, Any] | str | None
    """What a sample becomes on its way into a row, again in each epoch: the name of an objective,
    such as fim, span_corruption, masked_diffusion or bpe_dropout, or a mapping of its name and
    settings; null: samples stay as they were prepared."""
    output: Literal["numpy", "torch", "jax"]
    """Torch, numpy, or jax (int32 arrays; `segment_ids` instead of `seq_idx`; `cu_seqlens` only
    with max_segments)."""
    padding_free: bool
    """Deliver one flat row of all tokens."""
    padding: Literal["longest", "max_length"]
    """Length of unpacked rows: the longest sample of the batch, or max_length."""
    pad_side: Literal["right", "left"]
    """Side of the padding: right or left."""
    pad_to_multiple_of: int
    """Pad the length of rows to a multiple of this."""
    pad_token_id: int
    """Token id of padding."""
    labels: Literal["unshifted", "shifted"]
    """Labels as they are (unshifted), or moved by one for models that do not shift."""
    max_segments: int | None
    """Maximum number of samples and paddings per batch; `cu_seqlens` then always has max_segments +
    1 values, the last one repeated."""
    attention_mask: Literal["auto", "none", "4d"]
    """Auto (a plain mask for unpacked rows), none, or 4d (block-diagonal and causal)."""
    documents: Literal["apart", "joined"]
    """Apart: attention, positions and targets stay inside a document (sample); joined, with
    packing: concat: they run through the row."""
    pin_memory: bool
    """Put tensors into pinned memory."""
    use_cache: bool | None
    """Batches with several samples in a row carry `use_cache=False`: with a cache, models of
    transformers ignore where positions restart; null leaves it out, for models that do not take
    it."""
    media_threads: int
    """Number of threads that decode images."""
    media_bytes: int
    """Maximum bytes of media that are decoded ahead; a step with more is decoded alone."""
    on_broken_media: Literal["mask", "stop"]
    """What to do with an image, video or audio clip that cannot be read when its batch is made:
    mask (it is named and counted, and no token of its sample is trained) or stop."""
    mirror_bytes: int | None
    """For a cache in a bucket, the bytes of shards that this machine keeps; default:
    $PENSTOCK_MIRROR_BYTES, or 10 % of the free disk."""
    context_split: Literal["contiguous", "zigzag", "striped"] | None
    """Each rank of a context-parallel group gets a part of every row: contiguous (one piece, as
    Ulysses takes it), zigzag (two pieces, so that all ranks have as much to compute, as Megatron
    and ring attention take them), or striped (every n-th token)."""
    context_unit: Literal["row", "document"]
    """What context_split divides: row, or document, each document (sample) of a row by itself."""
    context_size: int | None
    """Ranks of a context-parallel group; null reads them from mesh= or from Megatron's parallel
    state."""
    context_rank: int | None
    """This rank in its context-parallel group; null reads it from mesh=, from Megatron's parallel
    state, or from model_parallel_size of the same size."""
    future_labels: int
    """For multi-token prediction: labels of so many tokens after the next one, in the array
    future_labels (rows, depth, length); a label never crosses the border of a document."""
    chat: bool | None
    """Render prompt and answer with the chat template; null: query_response only, if the tokenizer
    has a chat template (prompt_completion, query_response); render plain text with the chat
    template, too; null: messages and questions only, as in trl (preference, kto, prompt)."""
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
    """Column with the input of an instruction (messages); column with the prompt
    (prompt_completion, query_response, preference, kto, stepwise, prompt); column with the ids
    (pretokenized)."""
    output_key: str | None
    """Column with the answer (messages, prompt_completion, query_response); column with the answer
    that is judged (kto)."""
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
    """Text between instruction and input (messages); text between prompt and answer
    (prompt_completion, query_response); text after each step (stepwise)."""
    processor: str | None
    """Folder of the model's processor, for images, video and audio; else the tokenizer's folder, if
    a sampled record has media; or none."""
    media_root: str | None
    """Folder or URL that paths of images, video and audio are relative to; else the folder of the
    data."""
    media_folders: str | Sequence[str] | None
    """More folders, or URLs, that media may be read from; else only media_root and the folders of
    the data; / allows every folder."""
    on_media: str
    """What `prepare` does with a record whose image, video or audio is missing, broken or in no
    place: stop or skip; mask stops, too: on_broken_media decides what happens to media that break
    later."""
    multimodal_keys: Mapping[str, str] | None
    """Columns that list media, by kind, such as {image: image_file}; else image or images, and so
    on."""
    video_options: Mapping[str, Any] | None
    """Which frames of a video are sampled, and their size, in place of the processor's files: fps
    or num_frames, min_frames, max_frames, min_pixels, max_pixels."""
    max_image_pixels: int
    """Larger images are refused, as decompression bombs."""
    bos: bool | str | None
    """Add a beginning token: true, false, the token itself, or null for what the tokenizer does."""
    eos: bool | str | None
    """Add an end token: true, false, the token itself, or null for what the tokenizer does."""
    key: str
    """Column with the text (text); column with the list of segments (segments)."""
    labels_key: str
    """Column with the labels of the ids (pretokenized); column with the labels of the steps
    (stepwise)."""
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
    reward_key: str | None
    """Column with what the reward compares rollouts with: it makes no token, and workers get it as
    prompt.label."""
    data: Any
    """The datasets to train on."""
    eval: Any
    """The datasets to evaluate on."""


class PromptOptions(TypedDict, total=False):
    """Keyword arguments of `penstock.Prompts`.

    repeats: Rollouts of each prompt; workers read it from the prompt.
    epochs: How often every prompt is given; None forever.
    max_length: Longer prompts are left out and counted; needs a store.
    lease: Seconds after which a prompt that was taken and not acknowledged is given again; None for
        never.
    part: For a recipe: train, or the name of an eval set.
    filter: A function over records; those for which it returns false are left out and counted.
    filter_version: Have the answers of the filter remembered; raise it when something changes that
        the function uses.
    num_proc: Processes that call the filter; else all cores.
    seed: Decides the order: the same seed gives the same order.
    shuffle: Whether each epoch has a new random order.
    shuffle_window: Shards shuffled together: auto (all; 1,024 at a time where there are more), all,
        or a number.
    on_overlong: What to do with samples longer than max_length: drop, truncate, split or error.
    mix_by: Whether weights are shares of samples (the default) or of tokens.
    stopping_strategy: When an epoch with weights ends: first_exhausted (the default) when one
        dataset ends, all_exhausted when all have.
    block: Number of samples that are packed as a unit.
    """

    repeats: int
    """Rollouts of each prompt; workers read it from the prompt."""
    epochs: int | None
    """How often every prompt is given; None forever."""
    max_length: int | None
    """Longer prompts are left out and counted; needs a store."""
    lease: float | None
    """Seconds after which a prompt that was taken and not acknowledged is given again; None for
    never."""
    part: str
    """For a recipe: train, or the name of an eval set."""
    filter: Callable[..., Any] | None
    """A function over records; those for which it returns false are left out and counted."""
    filter_version: str | int | None
    """Have the answers of the filter remembered; raise it when something changes that the function
    uses."""
    num_proc: int | None
    """Processes that call the filter; else all cores."""
    seed: int
    """Decides the order: the same seed gives the same order."""
    shuffle: bool
    """Whether each epoch has a new random order."""
    shuffle_window: int | Literal["auto", "all"]
    """Shards shuffled together: auto (all; 1,024 at a time where there are more), all, or a
    number."""
    on_overlong: Literal["drop", "truncate", "split", "error"]
    """What to do with samples longer than max_length: drop, truncate, split or error."""
    mix_by: Literal["samples", "tokens"] | None
    """Whether weights are shares of samples (the default) or of tokens."""
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] | None
    """When an epoch with weights ends: first_exhausted (the default) when one dataset ends,
    all_exhausted when all have."""
    block: int
    """Number of samples that are packed as a unit."""


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
        "filter": None,
        "filter_version": None,
        "max_row_bytes": 268435456,
        "max_expansion": Ellipsis,
        "unique_keys": False,
        "field": None,
        "delimiter": None,
        "names": None,
        "types": None,
        "quotes": True,
        "record": "line",
        "keep_blank": False,
        "columns": None,
        "json_columns": (),
        "nulls": "deep",
        "cache_bytes": 67108864,
        "sample": None,
        "dtype": None,
        "eot": None,
        "eot_at": None,
        "arrays": None,
        "merge_json": True,
        "secrets": "mask",
        "on_unknown": "stop",
        "version": None,
        "spool_bytes": 34359738368,
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
        "multimodal_keys": None,
        "video_options": None,
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
        "reward_key": None,
        "plugin_options": None,
    },
    "LoaderOptions": {
        "epochs": 1,
        "max_steps": None,
        "max_tokens": None,
        "tokens_per_step": None,
        "rank": None,
        "world_size": None,
        "model_parallel_size": 1,
        "mesh": None,
        "run_id": None,
        "prefetch": 2,
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
        "objective": None,
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
        "media_threads": 4,
        "media_bytes": 1073741824,
        "on_broken_media": "mask",
        "mirror_bytes": None,
        "context_split": None,
        "context_unit": "row",
        "context_size": None,
        "context_rank": None,
        "future_labels": 0,
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
        "filter": None,
        "filter_version": None,
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
        "max_steps": None,
        "max_tokens": None,
        "tokens_per_step": None,
        "rank": None,
        "world_size": None,
        "model_parallel_size": 1,
        "mesh": None,
        "run_id": None,
        "prefetch": 2,
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
        "objective": None,
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
        "media_threads": 4,
        "media_bytes": 1073741824,
        "on_broken_media": "mask",
        "mirror_bytes": None,
        "context_split": None,
        "context_unit": "row",
        "context_size": None,
        "context_rank": None,
        "future_labels": 0,
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
        "multimodal_keys": None,
        "video_options": None,
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
        "reward_key": None,
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

# Names and values of 0.2, which are still taken, and what they are called now.
FORMER_NAMES: Mapping[str, Mapping[str, str]] = {
    "OpenOptions": {"shape": "format"},
    "PrepareOptions": {"template_kwargs": "chat_template_kwargs"},
    "LoaderOptions": {
        "replicas": "model_parallel_size",
        "skip": "skip_steps",
        "anneal": "interpolate",
        "overflow": "on_overlong",
        "window": "shuffle_window",
        "tail": "last_step",
        "stop": "stopping_strategy",
        "pad_to": "pad_to_multiple_of",
        "pad_id": "pad_token_id",
    },
    "PromptOptions": {
        "window": "shuffle_window",
        "overflow": "on_overlong",
        "stop": "stopping_strategy",
    },
}
FORMER_VALUES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "OpenOptions": {},
    "PrepareOptions": {},
    "LoaderOptions": {
        "mix_by": {"rows": "samples"},
        "stopping_strategy": {"first": "first_exhausted", "all": "all_exhausted"},
    },
    "PromptOptions": {
        "mix_by": {"rows": "samples"},
        "stopping_strategy": {"first": "first_exhausted", "all": "all_exhausted"},
    },
}
