"""Learn what ends a turn of a chat template: the tokens that close it, or at which generation stops."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.errors import TemplateError
from penstock.templates.chat.headers import Render, num_common
from penstock.templates.chat.kinds import Kind, MadeUp

_TALK: tuple[Kind, ...] = (("user", "text"), ("assistant", "text"), ("user", "text"))


@dataclass(frozen=True, slots=True)
class Ends:
    """What ends a turn."""

    usual: str  # what the template prints behind an answer, white space aside; "" where it prints nothing
    added: frozenset[str]  # the tokenizer's added tokens
    stops: frozenset[str]  # tokens at which generation stops

    def closes(self, text: str, start: int, stop: int) -> bool:
        """Whether text[start:stop] ends with what closes a turn."""
        if self.usual and text.endswith(self.usual, start, stop):
            return True
        return any(text.endswith(token, start, stop) for token in self.added)

    def stops_at(self, text: str, start: int, stop: int) -> bool:
        """Whether text[start:stop] ends with the usual end of a turn, or with a token at which generation stops."""
        return any(text.endswith(end, start, stop) for end in (self.usual, *self.stops) if end)

    def num_closing(self, text: str, start: int, stop: int) -> int:
        """How many added tokens text[start:stop] ends with."""
        count = 0
        while token := max((token for token in self.added if text.endswith(token, start, stop)), key=len, default=""):
            count, stop = count + 1, stop - len(token)
        return count

    def token_at(self, text: str, place: int, among: Collection[str]) -> str | None:
        return max((token for token in among if text.startswith(token, place)), key=len, default=None)


def learn_ends(render: Render, added: Collection[str], stops: Collection[str]) -> Ends:
    """Learn what stands behind an answer that another message follows, else behind the last one."""
    followed, last = (_printed_behind(render, kinds) for kinds in (_TALK, _TALK[:2]))
    # What is printed only where another message follows may be that one's header.
    usual = last if last and followed.startswith(last) else followed or last
    return Ends(usual, frozenset(added), frozenset(stops))


def _printed_behind(render: Render, kinds: Sequence[Kind]) -> str:
    """What two answers of different words have in common at their end."""
    made = MadeUp(kinds)
    try:
        wholes = [render(words, add_generation_prompt=False) for words in (made.messages, made.with_other_words())]
    except TemplateError:
        return ""
    runs = [[whole.text[run[0] : run[1]] for run in whole.runs if run[2] == 1] for whole in wholes]
    if not all(runs):
        return ""
    a, b = (some[-1][::-1] for some in runs)
    return a[: num_common(a, b)][::-1].rstrip()
