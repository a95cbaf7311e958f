"""Which tokens do the files beside a tokenizer.json add to it?  Those that transformers would add, with the same ids.

Nearly always none: what wrote tokenizer_config.json wrote them into tokenizer.json, too.  Where the two disagree, the config
has the last word about how a token is found, and a token that only it knows gets the next free id.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import tokenizers

from penstock.errors import TemplateError

_log = logging.getLogger("penstock")

_FLAGS = ("special", "lstrip", "rstrip", "normalized", "single_word")


def with_added(
    text: str, config: Mapping[str, Any], legacy: Mapping[str, Any], named: Iterable[Any], where: str
) -> str:
    """A tokenizer.json with these tokens.

    config: tokenizer_config.json.  legacy: added_tokens.json, which counts where the config is silent.
    named: special tokens as the files write them: a string, or a dict with content and flags.
    """
    try:
        own = {token["content"]: token for token in orjson.loads(text).get("added_tokens") or ()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return text  # whoever opens it says what is wrong
    special = {_content(token) for token in named}
    listed = config.get("added_tokens_decoder")
    if listed is None:
        listed = {number: _legacy(token, token in special) for token, number in legacy.items() if token not in own}
    wanted = {str(token.get("content")): token for _, token in _in_order(listed, where)}
    for token in named:
        if _content(token) not in own:
            wanted.setdefault(_content(token), token if isinstance(token, dict) else {"content": token})
    differing = {content: token for content, token in wanted.items() if _differs(token, own.get(content))}
    if not differing:
        return text
    opened = _open(text, where)
    size = len(opened.get_vocab(with_added_tokens=True))
    opened.add_tokens([_added(token, content in special) for content, token in differing.items()])
    if (num := len(opened.get_vocab(with_added_tokens=True)) - size) > 0:
        new = ", ".join(repr(content) for content in differing if content not in own)
        _log.warning(
            "%s: the files beside it add %d tokens that it lacks (among %s), with ids up to %d: a model needs a row for each",
            *(where, num, new[:200], max(opened.get_vocab(with_added_tokens=True).values())),
        )
    return opened.to_str()


def _in_order(listed: Any, where: str) -> list[tuple[int, Mapping[str, Any]]]:
    try:
        return sorted(((int(number), dict(token)) for number, token in listed.items()), key=lambda pair: pair[0])
    except (ValueError, TypeError, AttributeError) as error:
        raise TemplateError(
            f"{where}: added tokens beside it are not {{id: {{content, special, …}}}}: {error}"
        ) from error


def _legacy(content: str, special: bool) -> dict[str, Any]:
    return {"content": content, "special": special, "normalized": not special}


def _differs(token: Mapping[str, Any], own: Mapping[str, Any] | None) -> bool:
    return own is None or any(flag in token and bool(token[flag]) != bool(own.get(flag)) for flag in _FLAGS)


def _added(token: Mapping[str, Any], named: bool) -> tokenizers.AddedToken:
    flags = {flag: bool(token[flag]) for flag in _FLAGS if flag in token}
    flags["special"] = named or flags.get("special", True)
    return tokenizers.AddedToken(str(token["content"]), **flags)


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _open(text: str, where: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise TemplateError(f"{where}: not a tokenizer.json that can be read: {error}") from error
