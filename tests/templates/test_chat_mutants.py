"""Every rule of how masks are found has a mutant: without the rule, a conversation with a known truth comes out otherwise."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.templates import Reader
from penstock.templates.chat import headers, instrument, masks, template, trained_spans
from penstock.templates.chat.headers import Header

from .conversations import TODAY, tokenizer
from .structures import ALL_SHAPES, source, tagged
from .test_chat_structures import EXACT, REFUSED, SELECTIONS, judge

pytestmark = pytest.mark.soak

Patch = pytest.MonkeyPatch


def verdict(name: str, shape: str, selection: str) -> str:
    """A template that is opened again, so that it has learned nothing from before."""
    tags = name.startswith("tags ")
    name = name.removeprefix("tags ")
    text = tagged(name) if tags else source(name)
    opened = template.ChatTemplate(
        tokenizer(),
        reader=Reader(shape="messages", tool_arguments="parse"),
        chat_template=text,
        today=TODAY,
        train_on=SELECTIONS[selection][0],
        on_refused="skip",
    )
    messages, tools = ALL_SHAPES[shape]
    return judge(
        opened,
        name,
        {"messages": messages, "tools": tools},
        messages,
        SELECTIONS[selection][1](messages),
    )


def equal_messages_are_one(patch: Patch) -> None:
    def start(self: instrument.Marker, context: dict[str, Any]) -> dict[str, Any]:
        messages = context["messages"]
        self._numbers = {id(message): messages.index(message) for message in messages}
        return context

    patch.setattr(instrument.Marker, "start", start)


def loops_stay_open(patch: Patch) -> None:
    close = instrument._Writer._close

    def quiet(self: instrument._Writer) -> None:
        written = len(self._out)
        close(self)
        del self._out[written:]

    patch.setattr(instrument._Writer, "_close", quiet)


def with_is_not_a_block(patch: Patch) -> None:
    patch.setattr(instrument, "_SCOPES", ("if",))


def set_counts_in_message_loops(patch: Patch) -> None:
    patch.setattr(
        instrument.Marker,
        "set",
        lambda self, level, value: self.loop(level, value) if id(value) in self._numbers else "",
    )


def no_prompt(patch: Patch) -> None:
    patch.setattr(
        headers, "_behind_prompt", lambda whole, first, prompted, unprompted: (first[0], False)
    )


def no_label(patch: Patch) -> None:
    patch.setattr(headers.Headers, "_label", lambda self: Header(""))
    find = headers.find_start
    patch.setattr(
        headers,
        "find_start",
        lambda whole, number, before, render, main: find(whole, number, before, render, None),
    )


def no_partial(patch: Patch) -> None:
    patch.setattr(headers, "_before_thinking", lambda text, first, epilogue: None)


def without(place: int) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        find = headers.find_closing

        def less(*args: Any) -> tuple[str, str]:
            closing, tail = find(*args)
            return ("", tail) if place == 0 else (closing, "")

        patch.setattr(headers, "find_closing", less)
        patch.setattr(trained_spans, "find_closing", less)

    return apply


def ends_at_one_token(patch: Patch) -> None:
    """The first token behind the words, not all that close the turn."""
    ended = trained_spans.SpanFinder._ended

    def cut(self: Any, chat: Any, *args: Any) -> list[tuple[int, int]]:
        spans, text = ended(self, chat, *args), chat.whole.text
        token = "<|im_end|>"
        return [
            (a, min(b, place + len(token)) if (place := text.find(token, a)) >= 0 else b)
            for a, b in spans
        ]

    patch.setattr(trained_spans.SpanFinder, "_ended", cut)


def nothing(module: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(module, name, lambda *args, **options: value)


def every_turn_takes_the_next_token(patch: Patch) -> None:
    end = trained_spans.SpanFinder._end

    def taken(self: Any, chat: Any, *args: Any) -> int | None:
        return end(
            self, replace(chat, messages=[{**m, "role": "assistant"} for m in chat.messages]), *args
        )

    patch.setattr(trained_spans.SpanFinder, "_end", taken)


def words_outside_loops_are_believed(patch: Patch) -> None:
    def outside(self: Any, chat: Any, number: int) -> list[tuple[int, int]]:
        unowned = [run for run in chat.whole.runs if run[2] < 0]
        return [trained_spans._only_place(chat.whole.text, chat.messages[number], unowned)]

    patch.setattr(trained_spans.SpanFinder, "_outside", outside)


def only_the_prompt_tells(patch: Patch) -> None:
    def unproven(*args: Any) -> tuple[int, bool]:
        raise headers.Unproven("no header")

    patch.setattr(headers, "_behind_main", unproven)


def without_text_around(patch: Patch) -> None:
    patch.setattr(headers.Headers, "_with_text_around", lambda self, around: around)


def header_of_the_own_kind(patch: Patch) -> None:
    patch.setattr(
        headers.Headers,
        "_text_start",
        lambda self, example, around: example.first_word(),
    )


def any_empty_message_is_left_out(patch: Patch) -> None:
    patch.setattr(
        trained_spans,
        "_is_left_out",
        lambda chat, number: not trained_spans._says_something(chat.messages[number]),
    )


def tags_of_all(patch: Patch) -> None:
    patch.setattr(trained_spans, "_within_tags", lambda whole, message, runs: whole.tagged)


# rule → (mutant, structure, shape, selection, verdict with the rule)
MUTANTS: dict[str, tuple[Callable[[Patch], None], str, str, str, str]] = {
    "messages are told apart by identity": (
        equal_messages_are_one,
        "plain",
        "same calls",
        "assistant",
        EXACT,
    ),
    "a loop's end leaves its level": (
        loops_stay_open,
        "loop in a loop",
        "multi",
        "assistant",
        EXACT,
    ),
    "an end closes its own block": (with_is_not_a_block, "with", "single", "assistant", EXACT),
    "set is ignored in loops over messages": (
        set_counts_in_message_loops,
        "looks back",
        "multi",
        "assistant",
        EXACT,
    ),
    "the header is what a prompt prints": (
        no_prompt,
        "thinking header",
        "single",
        "assistant",
        EXACT,
    ),
    "a label is a header": (no_label, "labels", "single", "assistant", EXACT),
    "a header may be partial": (no_partial, "thinking prompt", "single", "assistant", EXACT),
    "the next message may close a turn": (
        without(0),
        "opens the result",
        "tools",
        "assistant",
        EXACT,
    ),
    "the next message's header is not trained": (
        without(1),
        "header before",
        "multi",
        "assistant",
        EXACT,
    ),
    "all tokens that close a turn are trained": (
        ends_at_one_token,
        "several ends",
        "single",
        "assistant",
        EXACT,
    ),
    "words must stand in their message's run": (
        nothing(trained_spans, "_check_words", None),
        "answer with a dot below",
        "single",
        "assistant",
        REFUSED,
    ),
    "no other message's words stand in a run": (
        nothing(headers.Example, "require_words_in_place", None),
        "pairs",
        "single",
        "users",
        REFUSED,
    ),
    "neighbours are looked at with words": (
        without_text_around,
        "answers told by users",
        "tools",
        "users",
        REFUSED,
    ),
    "a header is that of text": (header_of_the_own_kind, "loop in a loop", "parts", "users", EXACT),
    "a message is printed once": (
        nothing(trained_spans.SpanFinder, "_check_runs", None),
        "results ahead",
        "rounds",
        "all but system",
        REFUSED,
    ),
    "tokens between messages have one owner": (
        nothing(trained_spans.SpanFinder, "_check_runs", None),
        "header of the user",
        "single",
        "users",
        REFUSED,
    ),
    "a label behind a message may be the next one's": (
        nothing(trained_spans.SpanFinder, "_check_runs", None),
        "chatglm 2",
        "single",
        "users",
        REFUSED,
    ),
    "the end of an empty answer is its own": (
        every_turn_takes_the_next_token,
        "llama 2",
        "empty",
        "users",
        EXACT,
    ),
    "words outside loops are proven by made-up ones": (
        words_outside_loops_are_believed,
        "vicuna",
        "names of template words",
        "all but system",
        EXACT,
    ),
    "without a prompt the usual header counts": (
        only_the_prompt_tells,
        "granite 3",
        "system and assistant",
        "assistant",
        EXACT,
    ),
    "a message without a run is proven absent": (
        any_empty_message_is_left_out,
        "last outside",
        "empty_last",
        "assistant",
        REFUSED,
    ),
    "tags count in a message's own runs": (tags_of_all, "tags plain", "multi", "last", EXACT),
    "a prompt that reads text is not learned": (
        nothing(masks, "prompt_reads_text", False),
        "told not to think",
        "told",
        "assistant",
        EXACT,
    ),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_without_the_rule_a_mask_is_another_one(rule: str, monkeypatch: Patch) -> None:
    mutant, *case, expected = MUTANTS[rule]
    name, shape, selection = case
    assert verdict(name, shape, selection) == expected
    with monkeypatch.context() as patch:
        mutant(patch)
        assert verdict(name, shape, selection) != expected
