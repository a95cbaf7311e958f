"""Find where a trained turn begins: behind its header, which is what a generation prompt prints in that place.

The header of a turn is not the model's to write; everything behind it is.  It is learned once for each kind of turn from
made-up messages (kinds.py), and looked up.  Where made-up messages do not tell, the messages before the turn are rendered with
a generation prompt, and that rendering is compared with the whole.  What cannot be proven is refused.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.errors import TemplateError
from penstock.templates.chat.attribution import Attribution, Run
from penstock.templates.chat.kinds import Kind, Kinds, MadeUp
from penstock.templates.messages import Message

# (messages, add_generation_prompt=…) → attribution; raises TemplateError where the template refuses the messages
Render = Callable[..., Attribution]


class Unproven(TemplateError):
    """Which characters a message printed cannot be told from the rendering."""


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before a turn of some kind."""

    text: str
    is_partial: bool = False  # it is the beginning of the generation prompt, whose rest is thinking tags
    closing: str = ""  # what the next message prints first, but the turn itself if it is the last one
    tail: str = field(default="", compare=False)  # what the turn prints last, but only if another message follows


# What decides how a turn is printed: the two messages before it, itself, the one behind it (numbers of kinds; -1 for none), and
# whether there are tools.
Around = tuple[int, int, int, int, bool]


_USER: Kind = ("user", "text")
_ANSWER: Kind = ("assistant", "text")
_SYSTEM: Kind = ("system", "text")
_CALL: Kind = MadeUp.call_kind()
_RESULT: Kind = ("tool", (("name", "text"), ("tool_call_id", "text"), ("content", "text")))
_ROUND = (_USER, _CALL, _RESULT, _ANSWER)
# What may come before the two messages that are looked at.  A template accepts some of these; all of those must tell the same.
_LEADS: tuple[tuple[Kind, ...], ...] = (
    (),
    (_USER,),
    (_USER, _ANSWER),
    (_SYSTEM,),
    (_SYSTEM, _USER),
    (_SYSTEM, _USER, _ANSWER),
    _ROUND[:3],
    _ROUND,
    (*_ROUND, _USER),
)
_TAGS = re.compile(r"(?:\s|<[^<>\s]+>|\[[^\[\]\s]+\])*")
_OPENING, _CLOSING = ("<think>", "<thinking>", "<reasoning>"), ("</think>", "</thinking>", "</reasoning>")
_THINKING = (*_OPENING, *_CLOSING, "<|think|>")


class Headers:
    """Headers of a template's turns, learned from made-up messages."""

    def __init__(self, render: Callable[[bool], Render], kinds: Kinds) -> None:
        """`render(tools)` gives a function that renders messages, with made-up tools or without."""
        self._render = render
        self._kinds = kinds
        self._known: dict[Around, Header | Unproven | None] = {}
        self.main: Header | None = None  # before an answer to a user
        usual = (-1, kinds.number_of(_USER), kinds.number_of(_ANSWER), -1, False)
        if isinstance(found := self._learn(usual), Header):
            self.main = found if found.text else self._label()

    def _label(self) -> Header:
        """What stands before an answer where the template prints no generation prompt: a label is a header, white space is not."""
        made = MadeUp((_USER, _ANSWER))
        whole = self._render(False)(made.messages, add_generation_prompt=False)
        label = whole.text[first_run(whole, 1)[0] : _before_first_word(whole, 1, made.words[1])]
        label = label[: min((place for tag in _THINKING if (place := label.find(tag)) >= 0), default=len(label))]
        return Header(label if label.strip() else "")

    def learned(self, around: Around) -> Header | Unproven | None:
        """The header of such turns; why they cannot be followed; or None where made-up messages do not tell."""
        if around not in self._known:
            self._known[around] = self._learn(around)
        return self._known[around]

    def _learn(self, around: Around) -> Header | Unproven | None:
        leads = _LEADS if around[0] >= 0 else _LEADS[:1]
        found = [made for lead in leads if (made := self._behind(lead, around)) is not None]
        refused = next((made for made in found if isinstance(made, Unproven)), None)
        refused = refused or next(
            (made for lead in leads if (made := self._misprinted(lead, around)) is not None), None
        )
        return refused or (found[0] if found and all(made == found[0] for made in found) else None)

    def _misprinted(self, lead: Sequence[Kind], around: Around) -> Unproven | None:
        """Whether words are printed by another message where the turn and its neighbours have text for content, as they may not have."""
        around = self._with_text_around(around)
        made, number = self._made_up(lead, around)
        try:
            whole = self._render(around[-1])(made.messages, add_generation_prompt=False)
        except TemplateError:
            return None
        return None if (why := _misplaced(whole, made, number)) is None else Unproven(why)

    def _made_up(self, lead: Sequence[Kind], around: Around) -> tuple[MadeUp, int]:
        """Made-up messages, and the number of the turn."""
        numbers = around[:-1]
        kinds = [self._kinds[number] for number in numbers if number >= 0]
        return MadeUp([*lead, *kinds]), len(lead) + sum(before >= 0 for before in numbers[:2])

    def _with_text_around(self, around: Around) -> Around:
        before, previous, own, after = (
            number if number < 0 else self._kinds.number_of(_with_text(self._kinds[number])) for number in around[:-1]
        )
        return before, previous, own, after, around[-1]

    def _behind(self, lead: Sequence[Kind], around: Around) -> Header | Unproven | None:
        made, number = self._made_up(lead, around)
        render = self._render(around[-1])
        try:
            whole = render(made.messages, add_generation_prompt=False)
        except TemplateError:
            return None
        if (why := _misplaced(whole, made, number)) is not None:
            return Unproven(why)
        if _is_silent(whole, made, number, render):
            return Unproven(
                "the chat template prints nothing of what a message says; if it expects content in parts, or as text, "
                "write the records so"
            )
        try:
            if made.messages[number]["role"] == "assistant":
                start, partial = self._start(whole, number, made, render)
            else:
                start, partial = self._before_text(whole, number, made, around), False
        except Unproven:
            return None
        header = whole.text[first_run(whole, number)[0] : start]
        return Header(header, partial, *find_closing(whole, number, made.messages, render, made.words[number]))

    def _start(self, whole: Attribution, number: int, made: MadeUp, render: Render) -> tuple[int, bool]:
        try:
            return find_start(whole, number, made.messages[:number], render, self.main)
        except Unproven:
            first = first_run(whole, number)
            before = whole.text[first[0] : _before_first_word(whole, number, made.words[number])]
            if number or self.main is None or not self.main.text or before.count(self.main.text) != 1:
                raise
            # the first message of all prints something before its header, such as a system message of the template's own
            return first[0] + before.index(self.main.text) + len(self.main.text), False

    def _before_text(self, whole: Attribution, number: int, made: MadeUp, around: Around) -> int:
        """Where the words of a message begin that is not an assistant's: behind what stands before one that is plain text."""
        kind, first = _with_text(self._kinds[around[2]]), first_run(whole, number)
        if kind == self._kinds[around[2]]:
            return _before_first_word(whole, number, made.words[number])
        text = self.learned((*around[:2], self._kinds.number_of(kind), *around[3:]))
        if not isinstance(text, Header):
            return _before_first_word(whole, number, made.words[number])
        if not whole.text.startswith(text.text, first[0], first[1]):
            raise Unproven("the header of a message is not the one that a message of text has")
        return first[0] + len(text.text)


def _with_text(kind: Kind) -> Kind:
    """The same kind with text for content."""
    role, fields = kind
    if fields == "text":
        return kind
    fields = {**dict(fields), "content": "text"}
    return (role, "text") if len(fields) == 1 else (role, tuple(fields.items()))


def first_run(whole: Attribution, number: int) -> Run:
    run = next((run for run in whole.runs if run[2] == number), None)
    if run is None:
        raise Unproven("the chat template prints this message outside its loops over the messages, or not at all")
    return run


def find_start(
    whole: Attribution, number: int, before: Sequence[Message], render: Render, main: Header | None
) -> tuple[int, bool]:
    """Where the turn of an assistant's message begins, and whether its header is partial."""
    first = first_run(whole, number)
    try:
        prompted = render(before, add_generation_prompt=True) if before else None
    except TemplateError:
        prompted = None
    if prompted is None:  # the conversation begins with it, or the template refuses one that ends before it
        return _behind_main(whole, first, main)
    found = _behind_prompt(whole, first, prompted, lambda: render(before, add_generation_prompt=False))
    if found is None:
        raise Unproven("the text before a turn is not what a generation prompt prints there")
    start, partial = found
    if start == first[0] and main is not None and main.text and whole.text.startswith(main.text, start):
        start += len(main.text)  # no prompt is printed in this place, but the header is the usual one
    if start > first[1]:
        raise Unproven("a generation prompt prints more than the whole turn in its place")
    return start, partial


def _behind_main(whole: Attribution, first: Run, main: Header | None) -> tuple[int, bool]:
    """The usual header stands at the beginning of the turn, or behind nothing but a tag such as the BOS token."""
    place = whole.text.find(main.text, first[0], first[1]) if main is not None and main.text else -1
    if place >= 0 and main is not None and _TAGS.fullmatch(whole.text, first[0], place):
        return place + len(main.text), False
    if main is not None and (found := _before_thinking(whole.text, first, main.text)) is not None:
        return found
    raise Unproven("the header of a turn cannot be found: the template renders nothing that ends right before the turn")


def find_closing(
    whole: Attribution, number: int, messages: Sequence[Message], render: Render, words: Sequence[str] = ()
) -> tuple[str, str]:
    """Compare a turn that another message follows with the same turn as the last one: (closing, tail).

    Closing: what ends the turn but is printed by the message behind it.  Gemma 4 opens a tool's answer so, and the model learns to open it.
    Tail: what the turn prints only because another message follows, such as that message's header.
    """
    if number + 1 >= len(messages):
        return "", ""
    try:
        alone = render(messages[: number + 1], add_generation_prompt=False)
    except TemplateError:
        return "", ""
    if number not in (run[2] for run in alone.runs):
        return "", ""
    run = first_run(whole, number)
    printed, last = whole.text[run[0] : run[1]], _text_of(alone, first_run(alone, number))
    rest = last[len(printed) :].rstrip() if last.startswith(printed) else ""
    closing = rest if rest and whole.text.startswith(rest, run[1]) else ""
    behind, behind_last = (_behind_words(_text_of(some, _last_run(some, number)), words) for some in (whole, alone))
    tail = behind[len(behind_last) :] if behind.startswith(behind_last) else ""
    return closing, tail if tail.strip() else ""


def _text_of(whole: Attribution, run: Run) -> str:
    return whole.text[run[0] : run[1]]


def _last_run(whole: Attribution, number: int) -> Run:
    return next(run for run in reversed(whole.runs) if run[2] == number)


def _behind_words(text: str, words: Sequence[str]) -> str:
    """What a run prints behind the last of these words; all of it where there are none."""
    return text[max((text.rfind(word) + len(word) for word in words if word in text), default=0) :]


def _behind_prompt(
    whole: Attribution, first: Run, prompted: Attribution, unprompted: Callable[[], Attribution]
) -> tuple[int, bool] | None:
    """Compare what is printed with a generation prompt, up to the turn, with the whole."""
    text, start = whole.text, first[0]
    owned = [run for run in prompted.runs if run[2] >= 0]
    if owned:  # the last message before the turn, and all that follows it, stands in the whole as well
        last = owned[-1]
        place = [run for run in owned if run[2] == last[2]].index(last)
        same = [run for run in whole.runs if run[2] == last[2]]
        tail = prompted.text[last[0] :]
        if place < len(same) and same[place][0] < start and text.startswith(tail, same[place][0]):
            return max(start, same[place][0] + len(tail)), False
    epilogue = prompted.text[owned[-1][1] :] if owned else prompted.text
    if epilogue and text.startswith(epilogue, start):
        return start + len(epilogue), False
    try:
        bare = unprompted().text
    except TemplateError:
        bare = None
    if bare is not None:
        if not epilogue and bare == prompted.text:
            return start, False
        prompt = prompted.text[num_common(bare, prompted.text) :]
        if prompt and text.startswith(prompt, start):
            return start + len(prompt), False
        epilogue = epilogue or prompt
    return _before_thinking(text, first, epilogue)


def _before_thinking(text: str, first: Run, epilogue: str) -> tuple[int, bool] | None:
    """The beginning of the generation prompt stands before the turn, and the rest of it is thinking tags that the turn has lost."""
    common = num_common(text[first[0] : first[1]], epilogue)
    opened = max((epilogue.rfind(tag, 0, common) for tag in _OPENING), default=-1)
    if opened >= 0 and any(tag in epilogue[common:] for tag in _CLOSING):
        common = opened  # the prompt closes a thought, which the turn opens by itself
    for cut in (common, epilogue.rfind("<", 0, common)):  # "<" is common to "<think>" and "<answer>"
        if cut > 0 and _only_thinking(epilogue[cut:]):
            return first[0] + cut, True
    return None


def _only_thinking(text: str) -> bool:
    for tag in _THINKING:
        text = text.replace(tag, "")
    return not text.strip()


def num_common(a: str, b: str) -> int:
    """How many characters two texts have in common from the start."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle)
    return low


def _before_first_word(whole: Attribution, number: int, words: list[str]) -> int:
    """Where the words of a message begin that is not an assistant's."""
    first = first_run(whole, number)
    places = [place for word in words if (place := whole.text.find(word, first[0], first[1])) >= 0]
    if not places:
        raise Unproven("the chat template prints none of this message's words")
    return min(places)


def _misplaced(whole: Attribution, made: MadeUp, number: int) -> str | None:
    """Whether words of this message stand in another's runs, or another's in its own: in words, or None."""
    for owner, words in enumerate(made.words):
        for word in words:
            place = whole.text.find(word)
            while place >= 0:
                run = next(run for run in whole.runs if run[0] <= place < run[1])
                if run[2] != owner and number in (run[2], owner):
                    where = "outside its loops over the messages" if run[2] < 0 else "among those of another message"
                    return f"the chat template prints words of a message {where}, so it cannot be told what is trained"
                place = whole.text.find(word, place + 1)
    return None


def _is_silent(whole: Attribution, made: MadeUp, number: int, render: Render) -> bool:
    """Whether nothing of a message's words is printed: other words give the same text."""
    own = _own_text(whole, number)
    if not made.contents[number] or any(word in own for word in made.words[number]):
        return False
    try:
        return _own_text(render(made.with_other_words(), add_generation_prompt=False), number) == own
    except TemplateError:
        return False


def _own_text(whole: Attribution, number: int) -> str:
    return "".join(whole.text[run[0] : run[1]] for run in whole.runs if run[2] == number)
