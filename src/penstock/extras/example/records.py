"""Records about made-up towns.  A model that has seen a town's facts can answer a question that it has not seen in these words.

Every function returns the same records on every machine: the towns are listed, and choices are drawn with a fixed seed.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_BEGINNINGS = ("Al", "Bren", "Cor", "Dal", "Es", "Fen", "Gor", "Hal", "Ist", "Jor")
_ENDINGS = ("ford", "mouth", "wick", "stead", "bridge", "ham")
_RIVERS = ("Anner", "Bruna", "Celt", "Dove", "Ebra", "Fyle", "Gannet", "Hoar", "Inver", "Jade")
_CRAFTS = ("bells", "boats", "bread", "glass", "paper", "rope", "salt", "shoes", "silk", "tiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Town:
    """A made-up town with two facts that can be asked for."""

    name: str
    river: str
    craft: str


# (question, answer): the first ways to ask are for training, the last one of each fact is held out.
_RIVER_QUESTIONS = (
    "Which river flows through {name}?",
    "Name the river of {name}.",
    "What is the river in {name} called?",
    "{name} lies on which river?",
)
_CRAFT_QUESTIONS = (
    "What is {name} known for?",
    "Name the craft of {name}.",
    "What do people make in {name}?",
    "{name} is famous for what?",
)
_RIVER_ANSWER = "{name} lies on the {river}."
_CRAFT_ANSWER = "{name} is known for its {craft}."


def towns() -> list[Town]:
    """Return sixty towns, each with a river and a craft."""
    chance = random.Random(7)
    names = [
        f"{beginning}{ending}" for beginning, ending in itertools.product(_BEGINNINGS, _ENDINGS)
    ]
    return [
        Town(name=name, river=chance.choice(_RIVERS), craft=chance.choice(_CRAFTS))
        for name in names
    ]


def chats() -> list[dict[str, Any]]:
    """Return conversations of one to three questions about a town, without the held-out ways to ask."""
    chance = random.Random(11)
    conversations = []
    for town in towns():
        pairs = [*_asked(town, held_out=False)]
        chance.shuffle(pairs)
        while pairs:
            turns = chance.randint(1, 3)
            conversations.append(_conversation(pairs[:turns]))
            pairs = pairs[turns:]
    chance.shuffle(conversations)
    return conversations


def held_out_chats() -> list[dict[str, Any]]:
    """Return one conversation per town and fact, asked in words that `chats` does not have."""
    return [_conversation([pair]) for town in towns() for pair in _asked(town, held_out=True)]


def prompts() -> list[dict[str, Any]]:
    """Return questions with the word that a right answer contains, for reinforcement learning."""
    records = []
    for town in towns():
        for question, _ in _asked(town, held_out=False):
            is_about_river = question in {text.format(name=town.name) for text in _RIVER_QUESTIONS}
            records.append(
                {
                    "prompt": [{"role": "user", "content": question}],
                    "gold": town.river if is_about_river else town.craft,
                }
            )
    return records


def texts() -> list[dict[str, str]]:
    """Return short documents: what a traveller writes about three towns."""
    chance = random.Random(13)
    all_towns = towns()
    documents = []
    for day in range(1, 601):
        route = chance.sample(all_towns, k=3)
        sentences = [f"Day {day}."]
        for town in route:
            sentences.append(f"We came to {town.name}, which lies on the {town.river}.")
            sentences.append(f"They sold us {town.craft}, for which the town is known.")
        sentences.append(f"From {route[-1].name} we went on the next morning.")
        documents.append({"text": " ".join(sentences)})
    return documents


def _asked(town: Town, *, held_out: bool) -> Iterator[tuple[str, str]]:
    """Yield the questions about a town with their answers: those for training, or those that are held out."""
    chosen = slice(-1, None) if held_out else slice(None, -1)
    for questions, answer in ((_RIVER_QUESTIONS, _RIVER_ANSWER), (_CRAFT_QUESTIONS, _CRAFT_ANSWER)):
        for question in questions[chosen]:
            yield (
                question.format(name=town.name),
                answer.format(name=town.name, river=town.river, craft=town.craft),
            )


def _conversation(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    messages = []
    for question, answer in pairs:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return {"messages": messages}
