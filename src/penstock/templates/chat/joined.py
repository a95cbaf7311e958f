"""Answer conversations without rendering them, where a proof says what the chat template prints of messages of these kinds.

The first conversation of its kinds is rendered, and remembered.  With the second, pieces are learned (proof.py, pieces.py); with their help
the text and the mask of the third and of all that follow are one join.  Where nothing is proven, conversations are rendered.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import TemplateError
from penstock.templates.chat.chats import Chat, Chats, Request
from penstock.templates.chat.headers import Ends
from penstock.templates.chat.instrument import Attribution, attribute
from penstock.templates.chat.kinds import TOOL, MadeUp, role_of, strings_of
from penstock.templates.chat.pieces import Pieces, has_pieces, make_pieces
from penstock.templates.chat.proof import Prover
from penstock.templates.chat.unknown import NotProven
from penstock.templates.chat.unproven import RenderingsDiffer
from penstock.templates.chat.unrendered import Unrendered, absent_fields, count_words
from penstock.templates.conversation import Message
from penstock.templates.meter import MADE_UP
from penstock.templates.samples import Rendering

if TYPE_CHECKING:
    from penstock.templates.chat.masks import MaskFinder

_MANY_ORDERS = 4096  # orders of kinds; beyond these, they are too rare to be worth pieces

# Of pieces: the kinds of the messages, which are trained, the number of tools or what they are, whether a generation prompt is printed.
_Key = tuple[tuple[int, ...], tuple[bool, ...], int | str, bool]

# Finds the mask of made-up messages: (the request that they are made for, messages, tools, their rendering) → text and mask.
# Raises NotProven where the words of a real conversation may decide about its spans.
MadeUpMask = Callable[[Request, MadeUp, list[Any], Attribution], Rendering]


class JoinedMasks:
    """Answers without rendering where a proof says what the chat template prints (pieces.py); else asks the next finder.

    The first conversation that joins some pieces is rendered as well, and so are those that are verified; they must be equal.
    """

    def __init__(
        self,
        inner: "MaskFinder",
        chats: Chats,
        unrendered: Unrendered,
        made_up_mask: MadeUpMask,
    ) -> None:
        """unrendered: knows whether tools are printed."""
        self._inner = inner
        self._chats = chats
        self._unrendered = unrendered
        self._made_up_mask = made_up_mask
        self._forget()

    def _forget(self) -> None:
        self._prover: Prover | None = None  # compiled when it is first needed
        self._known: dict[_Key, Pieces | None] = {}  # None: such conversations are rendered
        self._once: set[_Key] = set()  # keys that one conversation had
        self._looks_into_tools = False  # whether the template does more with tools than print them

    def __getstate__(self) -> dict[str, Any]:
        learned = ("_prover", "_known", "_once", "_looks_into_tools")  # again, in another process
        return {name: value for name, value in self.__dict__.items() if name not in learned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def find(self, request: Request) -> Rendering:
        pieces = self._pieces(request) if request.is_usual else None
        joined = None if pieces is None else self._joined(pieces, request)
        if pieces is None or joined is None:
            return self._inner.find(request)
        if pieces.is_compared and not request.is_verified:
            return joined
        rendering = self._inner.find(request)
        _require_equal(joined, rendering)
        pieces.is_compared = True
        return rendering

    def _joined(self, pieces: Pieces, request: Request) -> Rendering | None:
        """The conversation with its spans, and with what is not printed of it."""
        conversation = request.conversation
        values = request.strings
        if pieces.num_tools:
            values = [*values, *(conversation.tools or [])]
        found = pieces.join(values)
        if found is None:
            return None
        text, spans = found
        if request.is_simple and not pieces.absent:  # nearly always
            said = sum([len(request.strings[place]) for place in pieces.answers])
            missing: dict[str, int] = {}
        else:
            said, missing = count_words(conversation.messages, pieces.absent)
        if conversation.tools:
            missing |= self._unrendered.unused(conversation)
        return Rendering(
            text,
            spans,
            unrendered=missing,
            assistant_characters=said,
            num_partial=pieces.num_partial,
        )

    def _pieces(self, request: Request) -> Pieces | None:
        """The pieces of such conversations; None where there are none, or none yet.

        They are learned when the second one comes, as that takes as long as some thirty renderings.
        """
        key = self._key(request)
        if key in self._known:
            return self._known[key]
        if key not in self._once:
            if len(self._once) < _MANY_ORDERS:
                self._once.add(key)
            return None
        if len(self._known) >= _MANY_ORDERS:
            return None
        self._known[key] = self._learned(request)
        return self._known[key]

    def _learned(self, request: Request) -> Pieces | None:
        """The pieces of such conversations; None where nothing is proven."""
        try:
            return self._learn(request)
        except NotProven:
            if request.conversation.tools:
                # perhaps because it looks into the tools: from now on, each list of tools counts by itself
                self._looks_into_tools = True
        except TemplateError:
            pass  # it refuses made-up messages
        return None

    def why_rendered(self, request: Request) -> str | None:
        """Why conversations of the kinds of this one are rendered; None where they are joined."""
        try:
            self._learn(request)
        except (NotProven, TemplateError) as error:
            return str(error)
        return None

    def _key(self, request: Request) -> "_Key":
        """All that decides which pieces a conversation has."""
        tools = request.conversation.tools
        which_tools: int | str = 0
        if tools:
            # not as JSON: NaN would be null there, and a tuple a list
            which_tools = len(tools) if self._are_unknown(tools) else repr(tools)
        prompt = bool(request.context["add_generation_prompt"])
        return request.kinds, tuple(request.trained), which_tools, prompt

    def _are_unknown(self, tools: Sequence[Any]) -> bool:
        """Whether pieces hold for any tools in the place of these: each is an object, of which the template only prints the whole."""
        return not self._looks_into_tools and all(type(tool) is dict and tool for tool in tools)

    def _learn(self, request: Request) -> Pieces:
        """The pieces of such conversations.  Raises NotProven, or TemplateError where the template refuses made-up ones."""
        kinds = [self._chats.kinds[number] for number in request.kinds]
        if not all(map(has_pieces, set(kinds))):
            raise NotProven("it has an inline thought, or content in parts")
        made = MadeUp(kinds)
        numbers, values = self._chats.kinds.read(made.messages)
        if numbers != request.kinds:
            raise NotProven("no made-up messages are of these kinds")
        tools = request.conversation.tools or []
        num_tools = len(tools) if self._are_unknown(tools) else 0
        if num_tools:
            tools = [TOOL] * num_tools
            values += tools
        if self._prover is None:
            self._prover = Prover(self._chats.renderer)
        proof = self._prover.prove(kinds, request.context, num_tools=num_tools)
        if not proof.is_comparable(values):
            raise NotProven("made-up messages do not compare as their words are assumed to")
        whole = attribute(proof.marked(values))
        absent = absent_fields(made.messages, whole)
        if not self._unrendered.agrees(request.conversation, request.kinds, absent):
            raise NotProven("made-up conversations do not show which fields it prints")
        return make_pieces(
            proof,
            values,
            self._made_up_mask(request, made, tools, whole),
            absent=absent,
            answers=[place for place, kind in enumerate(kinds) if role_of(kind) == "assistant"],
            num_tools=num_tools,
        )


def _require_equal(joined: Rendering, rendering: Rendering) -> None:
    """Raise RenderingsDiffer if a joined conversation is another one than jinja2 renders."""
    if joined.text != rendering.text:
        raise RenderingsDiffer(
            "the chat template prints this conversation in another way than its syntax tree says"
        )
    if joined.spans != rendering.spans:
        raise RenderingsDiffer(
            "the trained parts of this conversation are not those of made-up conversations of its kind"
        )


def all_of_made_up(
    request: Request, made: MadeUp, tools: list[Any], whole: Attribution
) -> Rendering:
    return Rendering(whole.text, [(0, len(whole.text))])


class TurnsOfMadeUp:
    """Finds the trained turns of made-up messages."""

    def __init__(self, find_mask: Callable[[Chat, Sequence[bool]], Rendering], ends: Ends) -> None:
        self._find_mask = find_mask
        self._ends = ends

    def __call__(
        self, request: Request, made: MadeUp, tools: list[Any], whole: Attribution
    ) -> Rendering:
        if request.renderer.has_generation and not request.is_simple:
            raise NotProven(
                "it has generation tags, and the messages have more than a role and text"
            )
        context = {**request.context, "tools": tools or None}

        def render(messages: Sequence[Message], **options: Any) -> Attribution:
            given = {**context, "messages": list(messages), **options}
            return attribute(request.renderer.render(given, MADE_UP))

        chat = Chat(made.messages, request.kinds, bool(tools), whole, render)
        rendering = self._find_mask(chat, request.trained)
        is_usual = not rendering.num_unended
        for number, is_trained in enumerate(request.trained):
            if is_trained and is_usual:
                is_usual = self._ends_by_itself(request, made, whole, number, rendering)
        if not is_usual:
            raise NotProven("words may decide where a trained turn begins or ends")
        return rendering

    def _ends_by_itself(
        self,
        request: Request,
        made: MadeUp,
        whole: Attribution,
        number: int,
        rendering: Rendering,
    ) -> bool:
        """Return whether an answer is one run with one span, whose end follows from the text that the template prints after its strings.

        Elsewhere what a message says may decide where its turn ends, or that it is refused.
        """
        runs = whole.runs_of(number)
        text = whole.text
        message = made.messages[number]
        if len(runs) != 1 or message.get("role") != "assistant":
            return False
        run = runs[0]
        inside = [span for span in rendering.spans if run.start <= span[0] < run.stop]
        if len(inside) != 1:
            return False
        if request.renderer.has_generation:
            return True
        begin, end = inside[0]
        last = begin
        for said in strings_of(message):
            place = text.rfind(said, begin, end)
            if place >= 0:
                last = max(last, place + len(said))
        return self._ends.stops_at(text, last, end)
