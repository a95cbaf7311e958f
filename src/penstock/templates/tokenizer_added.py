"""Find the tokens that the files beside a tokenizer.json add to it: those that transformers would add, with the same ids.

Nearly always none: what wrote tokenizer_config.json wrote them into tokenizer.json, too.  Where the two disagree, the config
decides how a token is found, and a token that only it knows gets the next free id.
"""

from collections.abc import Mapping
from typing import Any

import tokenizers

from penstock.errors import TemplateError
from penstock.templates.tokenizer_files import TokenizerFiles

_FLAGS = ("special", "lstrip", "rstrip", "normalized", "single_word")


def with_added(opened: tokenizers.Tokenizer, files: TokenizerFiles) -> tuple[str, str] | None:
    """The tokenizer.json with these tokens, and a warning ("" where all ids were there); None where nothing is to be added.

    Tokens are added to `opened`, which is used up by that.
    """
    own = {token.content: token for token in opened.get_added_tokens_decoder().values()}
    special = {_content(token) for token in files.named_tokens}
    listed: Any = files.added_tokens
    if listed is None:
        old = files.legacy_tokens.items()
        listed = {number: _legacy(token, token in special) for token, number in old if token not in own}
    wanted = {str(token.get("content")): token for _, token in _in_order(listed, files.path or "tokenizer")}
    for token in files.named_tokens:
        if _content(token) not in own:
            wanted.setdefault(_content(token), token if isinstance(token, dict) else {"content": token})
    differing = {content: token for content, token in wanted.items() if _differs(token, own.get(content))}
    if not differing:
        return None
    size = len(opened.get_vocab(with_added_tokens=True))
    opened.add_tokens([_added(token, content in special) for content, token in differing.items()])
    ids = opened.get_vocab(with_added_tokens=True).values()
    warning = ""
    if len(ids) > size:
        new = ", ".join(repr(content) for content in differing if content not in own)
        warning = (
            f"the files beside it add {len(ids) - size} tokens that it lacks (among {new[:200]}), with ids up to "
            f"{max(ids)}: a model needs a row for each"
        )
    return opened.to_str(), warning


def _in_order(listed: Any, where: str) -> list[tuple[int, Mapping[str, Any]]]:
    try:
        return sorted(((int(number), dict(token)) for number, token in listed.items()), key=lambda pair: pair[0])
    except (ValueError, TypeError, AttributeError) as error:
        raise TemplateError(
            f"{where}: added tokens beside it are not {{id: {{content, special, …}}}}: {error}"
        ) from error


def _legacy(content: str, special: bool) -> dict[str, Any]:
    return {"content": content, "special": special, "normalized": not special}


def _differs(token: Mapping[str, Any], own: tokenizers.AddedToken | None) -> bool:
    return own is None or any(flag in token and bool(token[flag]) != bool(getattr(own, flag)) for flag in _FLAGS)


def _added(token: Mapping[str, Any], named: bool) -> tokenizers.AddedToken:
    flags = {flag: bool(token[flag]) for flag in _FLAGS if flag in token}
    flags["special"] = named or flags.get("special", True)
    return tokenizers.AddedToken(str(token["content"]), **flags)


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
