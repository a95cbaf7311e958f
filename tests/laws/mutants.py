"""Mistakes for the laws to find.  Each mutant names a function of the package and says what the function does wrong.

As a pytest plugin (`-p tests.laws.mutants`), this module makes the mistake that the environment variable PENSTOCK_MUTANT names.
"""

import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from types import FunctionType
from typing import Any

import numpy as np

Change = Callable[[Callable[..., Any]], Callable[..., Any]]

LAWS = "tests/laws/test_laws.py"
LAW_1 = f"{LAWS}::test_law_1_order_does_not_depend_on_ranks_or_batch_size"
LAW_2 = f"{LAWS}::test_law_2_nothing_is_lost_and_nothing_repeated"
LAW_3 = f"{LAWS}::test_law_3_resume_after_any_cuts_under_any_world"
LAW_4 = f"{LAWS}::test_law_4_number_of_steps_is_exact_and_every_step_can_be_sought"
LAW_5 = f"{LAWS}::test_law_5_tokens_in_are_tokens_out_and_tokens_counted"
STREAMS = f"{LAWS}::test_law_2_rows_of_a_stream_come_if_they_hold_a_target"
EPOCHS = f"{LAWS}::test_every_epoch_has_a_new_order_of_the_same_samples"
SHARES = f"{LAWS}::test_mixing_keeps_exact_shares_of_what_is_delivered_in_every_block"
FAIL_CLOSED = "tests/laws/test_fail_closed.py"
MIXING = "tests/laws/test_mixing.py::test_law_10_every_tenth_of_an_epoch_is_like_the_whole"
WINDOWS = "tests/laws/test_mixing.py::test_windows_hold_1024_shards_and_a_small_rest_joins_the_last"
LAW_11 = "tests/extras/rl/test_law_11.py::TestLaw11"
BALANCE = "tests/plan/test_balance.py"
CHANGES = "tests/laws/test_changes.py"
CHANGED_EPOCH = (
    f"{CHANGES}::test_an_epoch_holds_every_sample_of_every_source_equally_often_across_changes"
)
REPLAY = f"{CHANGES}::test_a_run_is_replayed_from_its_journal_with_any_number_of_rows_per_step"
GROWN = f"{CHANGES}::test_new_rows_of_a_source_come_in_its_current_pass_and_nothing_comes_twice"
COUNTERS = "tests/laws/test_counters.py"
COUNTED = f"{CHANGES}::test_counters_count_every_sample_once_across_changes"
PACKING = "tests/plan/test_packing.py"
PASSES = "tests/laws/test_passes.py"
OVERLAP = "tests/laws/test_overlap.py"
PERMUTATION = "tests/plan/test_permutation.py"


@dataclass(frozen=True)
class Mutant:
    function: str  # module:qualified name, below penstock
    change: Change  # the right function → the wrong one
    noticed_by: str  # tests that must fail


MUTANTS: dict[str, Mutant] = {}


def mutant(function: str, noticed_by: str) -> Callable[[Change], Change]:
    def add(change: Change) -> Change:
        MUTANTS[change.__name__.replace("_", " ")] = Mutant(function, change, noticed_by)
        return change

    return add


def find(path: str) -> FunctionType:
    """The function at module:qualified.name, also behind a property, a static method or a cache."""
    module, _, name = path.partition(":")
    owner: Any = importlib.import_module(f"penstock.{module}")
    for part in name.split("."):
        owner = vars(owner)[part]
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        owner = getattr(owner, attribute, None) or owner
    assert isinstance(owner, FunctionType), path
    return owner


def apply(name: str) -> None:
    """Change the function in place, so that every reference to it, also in tables and caches, gets the mistake."""
    mutant = MUTANTS[name]
    function = find(mutant.function)
    right = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    right.__kwdefaults__ = function.__kwdefaults__
    assert not function.__closure__, f"{mutant.function} is a closure"
    key = f"mutant of {mutant.function}"
    function.__globals__[key] = mutant.change(right)
    namespace: dict[str, Any] = {}
    exec(
        f"def wrong(*given, **options):\n    return globals()[{key!r}](*given, **options)",
        namespace,
    )
    function.__code__ = namespace["wrong"].__code__
    function.__defaults__ = function.__kwdefaults__ = None


# Passes of a source, rows that mix lengths, rows that share a token


@mutant("plan.segments:Segment._begins_pass", PASSES)
def a_block_of_several_passes_is_ordered_as_a_whole(right):
    return lambda self, shares: None


@mutant("plan.packing:_close_gaps", PACKING)
def a_gap_is_closed_by_pieces_that_do_not_fit(right):
    return lambda gaps, slots, lengths: right(gaps + 1, slots, lengths)


@mutant("plan.packing:mixed_fit", PACKING)
def rows_hold_samples_of_one_length(right):
    from penstock.plan.packing import best_fit

    return lambda lengths, capacity, max_per_row: best_fit(lengths, capacity, max_per_row)


@mutant("plan.rows:shared_tokens", OVERLAP)
def a_shared_token_counts_twice(right):
    return lambda starts, sources, *spans: np.zeros(sources.size, np.bool_)


# Seeds and permutations


@mutant("plan.permutation:derive", EPOCHS)
def the_epoch_is_not_in_any_seed(right):
    return lambda seed, *path: right(seed, *(part for part in path if isinstance(part, str)))


@mutant("plan.permutation:derive", EPOCHS)
def seeds_are_added(right):
    return lambda seed, *path: right(seed + sum(map(len, map(str, path))))


@mutant("plan.order:Passes._make_layout", FAIL_CLOSED)
def the_order_of_shards_is_the_same_in_every_epoch(right):
    return lambda self, number: right(self, 0)


@mutant("plan.order:Passes._make_window_permutation", LAW_2)
def the_permutation_of_a_window_is_shorter_than_the_window(right):
    return lambda self, number, window, size: right(self, number, window, max(size - 1, 1))


@mutant("plan.permutation:Permutation._network", PERMUTATION)
def the_permutation_loses_a_digit(right):
    return lambda self, values, inverse: (
        right(self, values, inverse) & ~np.uint64(0 if inverse else 1)
    )


@mutant("plan.permutation:_round", PERMUTATION)
def the_round_function_is_linear(right):
    multiply, low, half = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFFFFFFFF), np.uint64(32)
    return lambda digit, key, radix: (((digit * multiply) ^ key) & low) * radix >> half


# Shares of a mixture


@mutant("plan.mix:Concatenation.shares", LAW_2)
def the_last_block_of_an_epoch_is_forgotten(right):
    return lambda self, epoch, block: right(self, epoch, block + 1) and right(self, epoch, block)


@mutant("plan.mix:Concatenation._places", FAIL_CLOSED)
def sources_do_not_count_their_epochs(right):
    return lambda self, epoch, border: right(self, 0, border)


@mutant("plan.mix:Clock.place", SHARES)
def every_share_is_rounded_down(right):
    return lambda self, amount: right(self, Fraction(max(int(amount), 1)) if amount > 0 else amount)


@mutant("plan.mix:WeightedMix.shares", LAW_2)
def an_epoch_of_a_mixture_begins_anew(right):
    return lambda self, epoch, block: right(self, 0, block)


@mutant("plan.block:Block.delivered_tokens", SHARES)
def dropped_samples_count_towards_a_share_of_rows(right):
    return lambda self: np.maximum(right(self), 1)


@mutant("plan.block:Block._kept_lengths", SHARES)
def dropped_tokens_count_towards_a_share_of_tokens(right):
    return lambda self: self.lengths.copy()


@mutant("plan.settings:PlanSettings.window_borders", MIXING)
def windows_hold_one_shard(right):
    return lambda self, num_shards: np.arange(num_shards + 1)


@mutant("plan.settings:PlanSettings.window_borders", MIXING)
def windows_grow_from_one_shard(right):
    return lambda self, num_shards: np.array(
        sorted({0, *(2**n - 1 for n in range(20) if 2**n <= num_shards), num_shards})
    )


@mutant("plan.settings:PlanSettings.window_borders", WINDOWS)
def the_rest_of_the_shards_of_a_window_stays_alone(right):
    return lambda self, num_shards: np.array(sorted({*range(0, num_shards, 1024), num_shards}))


# Cutting, dropping, packing


@mutant("plan.block:Block._with_target", LAW_2)
def pieces_without_a_target_are_kept(right):
    return lambda self, pieces: right(self, pieces) if self.settings.method.cuts else None


@mutant("plan.block:Block._with_target", STREAMS)
def rows_of_a_stream_without_a_target_are_kept(right):
    return lambda self, pieces: None if self.settings.method.cuts else right(self, pieces)


@mutant("plan.block:Block._count_not_in_rows", LAW_5)
def pieces_without_a_target_are_not_counted(right):
    def wrong(*given):
        counters = right(*given)
        del counters.tokens_dropped["nothing_to_train"]
        return counters

    return wrong


@mutant("plan.block:Block._count_not_in_rows", LAW_5)
def overlong_samples_are_not_counted(right):
    def wrong(*given):
        counters = right(*given)
        del counters.samples_dropped["overlong"]
        return counters

    return wrong


@mutant("plan.block:Block._pieces", LAW_2)
def a_split_sample_loses_its_rest(right):
    def wrong(self, kept):
        if self.settings.on_overlong == "split":
            capacity = self.settings.capacity
            kept = np.where(kept > capacity, kept // capacity * capacity, kept)
        return right(self, kept)

    return wrong


@mutant("plan.block:Block._order_rows", FAIL_CLOSED)
def rows_are_not_shuffled(right):
    return lambda self, *given, **where: right(
        replace(self, settings=replace(self.settings, shuffle=False)), *given, **where
    )


@mutant("plan.packing:next_fit", PACKING)
def next_fit_overfills_a_row(right):
    return lambda lengths, capacity, max_per_row: right(lengths, capacity + 1, max_per_row)


@mutant("plan.packing:_move_groups", LAW_2)
def best_fit_gives_a_row_to_two_groups(right):
    def wrong(histogram, capacity, max_per_row):
        first_rows, num_rows, per_row = right(histogram, capacity, max_per_row)
        return np.minimum(first_rows, max(int(first_rows.max()) - 1, 0)), num_rows, per_row

    return wrong


@mutant("plan.settings:PlanSettings.aligned", LAW_2)
def alignment_is_forgotten(right):
    return lambda self, lengths: lengths


# Positions, tails, ranks


@mutant("plan.plan:Plan._take", LAW_2)
def an_epoch_begins_at_its_second_block(right):
    def wrong(self, position, num_rows):
        rows, after = right(self, position, num_rows)
        return rows, replace(after, block=1) if after.epoch > position.epoch else after

    return wrong


@mutant("plan.rows:Rows.slice", LAW_2)
def a_row_is_repeated_at_the_end_of_a_block(right):
    return lambda self, start, stop: right(self, max(0, start - (stop == self.num_rows)), stop)


@mutant("plan.plan:Plan._take", LAW_3)
def the_position_is_off_by_one_row(right):
    def wrong(self, position, num_rows):
        rows, after = right(self, position, num_rows)
        return rows, replace(after, row=after.row + (after.row > 9))

    return wrong


@mutant("plan.plan:Plan._take", LAW_3)
def the_position_counts_padding_as_rows(right):
    def wrong(self, position, num_rows):
        rows, after = right(self, position, num_rows)
        return rows, replace(after, rows=position.rows + num_rows)

    return wrong


def with_tail(function, right_tail: str, wrong_tail: str):
    """The function, which takes one last_step for another."""

    @functools.wraps(function)
    def wrong(self, *given, **options):
        if self.settings.last_step != right_tail:
            return function(self, *given, **options)
        settings, self.settings = self.settings, replace(self.settings, last_step=wrong_tail)
        try:
            return function(self, *given, **options)
        finally:
            self.settings = settings

    return wrong


@mutant("plan.plan:Plan._next", LAW_3)
def the_tail_is_repeated_where_it_should_be_padded(right):
    return with_tail(right, "pad", "repeat")


@mutant("plan.plan:Plan.step", LAW_3)
def the_tail_is_dropped_where_it_should_be_padded(right):
    return with_tail(right, "pad", "drop")


@mutant("plan.plan:Plan.num_steps", LAW_4)
def the_number_of_steps_is_rounded_down(right):
    return with_tail(right, "pad", "drop")


@mutant("plan.ranks:deal", LAW_1)
def ranks_take_runs_that_overlap(right):
    def wrong(costs, world_size, settings):
        dealt = right(costs, world_size, settings)
        return np.minimum(dealt + (dealt == dealt[:, :1, :1]), costs.shape[1] - 1)

    return wrong


@mutant("plan.ranks:deal", BALANCE)
def ranks_with_the_most_work_get_the_costliest_rows(right):
    return lambda costs, world_size, settings: right(-costs, world_size, settings)


@mutant("plan.ranks:row_sums", BALANCE)
def attention_costs_nothing(right):
    return lambda rows, settings: right(rows, replace(settings, cost_attention=0))


@mutant("plan.block:_Runs.places", BALANCE)
def rows_of_similar_cost_do_not_stay_together(right):
    return lambda self, values, groups: right(replace(self, size=1), values, groups)


@mutant("plan.settings:PlanSettings.of_order", FAIL_CLOSED)
def the_block_balance_is_not_in_the_fingerprint(right):
    return lambda self: right(replace(self, balance="rank"))


# Refusals


@mutant("plan.plan:Plan.identity", FAIL_CLOSED)
def a_setting_is_not_in_the_fingerprint(right):
    return lambda self: {key: value for key, value in right(self).items() if key != "align"}


@mutant("plan.plan:Plan.check_summary", FAIL_CLOSED)
def a_state_of_another_plan_is_accepted(right):
    return lambda self, fingerprint, summary: None


# Prompts


@mutant("extras.rl.leases:Leases.unsettled", LAW_11)
def prompts_in_flight_are_not_saved(right):
    return lambda self: dict(sorted(self.returned.items()))


@mutant("extras.rl.leases:Leases.restore", LAW_11)
def prompts_in_flight_at_a_checkpoint_are_not_given_again(right):
    def wrong(self, **saved):
        right(self, **saved)
        self._again = []

    return wrong


@mutant("extras.rl.leases:Leases._problem", LAW_11)
def a_lease_that_is_over_still_counts(right):
    return lambda self, ordinal, number: right(self, ordinal, None)


@mutant("extras.rl.leases:Leases.take", LAW_11)
def a_prompt_is_given_again_before_its_time(right):
    return lambda self, count, *, now, **options: right(self, count, now=now + 5, **options)


@mutant("extras.rl.leases:Leases.back", LAW_11)
def what_is_given_back_is_forgotten(right):
    def wrong(self, asked, *, note=None):
        for ordinal, _ in asked:
            self.leased.pop(ordinal, None)

    return wrong


@mutant("extras.rl.leases:Leases.keep", LAW_11)
def an_accepted_prompt_is_given_to_another_worker(right):
    return lambda self, asked, *, due=0.0: right(self, asked, due=due)


@mutant("extras.rl.order:PromptOrder.epoch_of", LAW_11)
def every_epoch_has_the_order_of_the_first(right):
    return lambda self, ordinal: 0


# Changes of the mixture


@mutant("plan.segments:Segment.cut_block", CHANGED_EPOCH)
def what_a_change_cuts_off_is_lost(right):
    def wrong(self, epoch, number, row):
        cut = right(self, epoch, number, row)
        return replace(cut, is_left=np.zeros_like(cut.is_left))

    return wrong


@mutant("plan.segments:Segment.cursors_at", CHANGED_EPOCH)
def a_removed_source_begins_again(right):
    def wrong(self, place):
        names = {order.name for order in self.orders}
        return {name: cursor for name, cursor in right(self, place).items() if name in names}

    return wrong


@mutant("plan.order:SourceOrder.cursor", CHANGED_EPOCH)
def a_source_goes_on_at_the_start_of_the_cut_block(right):
    return lambda self, start, stop, is_left: right(self, start, start, None)


@mutant("plan.order:SourceCursor.order", GROWN)
def new_rows_wait_for_the_next_pass(right):
    def wrong(self, name, shard_sizes, settings, *, is_full):
        order = right(self, name, shard_sizes, settings, is_full=is_full)
        pieces = [piece for piece in order.pieces if not piece.first]
        first_pass = order._first_pass
        return type(order)(name, shard_sizes, settings, pieces=pieces, first_pass=first_pass)

    return wrong


@mutant("plan.order:SourceCursor.from_json", REPLAY)
def a_state_forgets_what_waits(right):
    return lambda value: replace(right(value), pieces=())


@mutant("plan.segments:Blocks._make_cut_block", COUNTED)
def what_a_change_cuts_off_is_counted_twice(right):
    def wrong(self, segment, epoch, number, row):
        packed = right(self, segment, epoch, number, row)
        whole = self._segments[segment].block(epoch, number).pack(epoch=epoch, number=number)
        return replace(packed, dropped=packed.dropped + whole.delivered(row, whole.rows.num_rows))

    return wrong


@mutant("plan.plan:RowRange.begins", COUNTERS)
def a_resume_inside_a_block_counts_its_drops_again(right):
    return lambda self: True


@mutant("plan.rows:PackedBlock.delivered", COUNTERS)
def a_whole_block_is_counted_when_it_begins(right):
    def wrong(self, start, stop):
        return right(self, 0, self.rows.num_rows) if start == 0 else right(self, stop, stop)

    return wrong


if name := os.environ.get("PENSTOCK_MUTANT"):
    apply(name)
