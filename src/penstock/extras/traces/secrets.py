"""Find secrets in traces: keys, tokens, passwords and the names of people in their home folders.

A secret becomes `[its kind]`, so that a model learns that something stood there, and not what.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.extras.traces.settings import TraceOptions
from penstock.types import BadRow, Record

# Kind → pattern.  The group `secret` is what is replaced; without one, all that was found is.
# Sessions hold lines of megabytes.  So no pattern may read on without an end from each of many places, as `[\w-]*` at its begin would.
_PATTERNS: dict[str, re.Pattern[str]] = {
    "private_key": re.compile(
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----.*?(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY-----|\Z)",
        re.DOTALL,
    ),
    "anthropic_key": re.compile(r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    "openai_key": re.compile(r"\bsk-(?!ant-)(?:proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_-]{20,}"),
    "github_token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})"),
    "gitlab_token": re.compile(r"\bglpat-[A-Za-z0-9_-]{20,}"),
    "huggingface_token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "aws_key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "aws_secret": re.compile(
        r"(?i)aws.{0,20}secret.{0,20}?[=:]\s*[\"']?(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"
    ),
    "google_key": re.compile(r"\bAIza[A-Za-z0-9_-]{35}"),
    "slack_token": re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    "stripe_key": re.compile(r"\b[rs]k_live_[A-Za-z0-9]{20,}"),
    "npm_token": re.compile(r"\bnpm_[A-Za-z0-9]{36}"),
    "wandb_key": re.compile(r"(?i)wandb.{0,20}?[=:\s]\s*[\"']?(?P<secret>[0-9a-f]{40})\b"),
    "jwt": re.compile(r"\beyJ[A-Za-z0-9_-]{10,4096}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}"),
    "bearer_token": re.compile(r"(?i)\bbearer\s+(?P<secret>[A-Za-z0-9._~+/=-]{20,})"),
    "url_password": re.compile(r"(?<=[a-z0-9])://[^\s/:@]*:(?P<secret>[^\s/@]{3,})@"),
    "basic_auth": re.compile(
        r"(?i)\bauthorization[\\\"']*\s*[=:]\s*[\\\"']*basic\s+(?P<secret>[A-Za-z0-9+/=]{8,})"
    ),
    "command_password": re.compile(
        r"\bcurl\b[^\n|;&]{0,200}?\s(?:-u|--user)[ =][\\\"']*[^\s:\"'\\]{1,64}:(?P<secret>[^\s\"'$\\]{3,})"
    ),
    # Of JSON in a text, too: its quotes have backslashes before them.
    "password": re.compile(
        r"(?i)(?:api[_-]?key|secret(?:[_-]?key)?|access[_-]?key|account[_-]?key|access[_-]?token|auth[_-]?token|password|passwd)"
        r"[\\\"']*\s*[=:]\s*[\\\"']*(?P<secret>[^\s\"'\\<>\[\](){}$]{8,}+)(?![\[(])"
    ),
    # GITLAB_TOKEN=…, DJANGO_KEY: …: names of variables in capitals.
    "variable": re.compile(
        r"\b[A-Z][A-Z0-9]{0,40}(?:_[A-Z0-9]{1,40}){0,6}?_(?:TOKEN|KEY|PASS|PWD|CREDENTIALS)[\\\"']*\s*[=:]\s*"
        r"[\\\"']*(?P<secret>(?=[^\s\"'\\]{0,200}[0-9])[^\s\"'\\<>\[\](){}$/]{16,}+)(?![\[(])"
    ),
    "home_path": re.compile(
        r"(?:/home/|/Users/|/projects/-(?:home|Users)-|\b[A-Za-z]:\\{1,2}Users\\{1,2})(?P<secret>[A-Za-z0-9._-]+)"
    ),
}
_NOT_NAMES = frozenset(("Shared", "Public", "Default", "[home_path]"))
KINDS = tuple(_PATTERNS)


def find_secrets(value: Any, found: Counter[str]) -> Any:
    """Return a value of JSON with its secrets replaced, and count them by kind."""
    if isinstance(value, str):
        return _masked(value, found)
    if isinstance(value, list):
        return [find_secrets(each, found) for each in value]
    if isinstance(value, dict):
        masked: dict[str, Any] = {}
        for key, inner in value.items():
            name, without = _masked_pair(key, inner, found)
            while name in masked:  # two keys were secrets of one kind
                name += "'"
            masked[name] = without
        return masked
    return value


def _masked_pair(key: str, value: Any, found: Counter[str]) -> tuple[str, Any]:
    """Mask a key of an object and its value, which is also a secret if the key says so, as in {"password": "…"}."""
    key = _masked(key, found)
    if not isinstance(value, str):
        return key, find_secrets(value, found)
    assigned = f"{key}="
    found_in_pair: Counter[str] = Counter()
    masked = _masked(f"{assigned}{value}", found_in_pair)
    if not masked.startswith(assigned):  # what was found begins in the key
        return key, _masked(value, found)
    found.update(found_in_pair)
    return key, masked[len(assigned) :]


def _masked(text: str, found: Counter[str]) -> str:
    for kind, pattern in _PATTERNS.items():
        group = "secret" if "secret" in pattern.groupindex else 0

        def replaced(match: re.Match[str], kind: str = kind, group: str | int = group) -> str:
            if match[group] in _NOT_NAMES:
                return match[0]
            found[kind] += 1
            begin = match.start(group) - match.start()
            end = match.end(group) - match.start()
            return f"{match[0][:begin]}[{kind}]{match[0][end:]}"

        text = pattern.sub(replaced, text)
    return text


def without_secrets(
    record: Record, keys: Sequence[str], options: TraceOptions, *, line: int
) -> Record | BadRow:
    """Return a record with its secrets masked, kept or refused, and their number by kind.  keys: of the values that are searched."""
    secrets: Counter[str] = Counter()
    masked = {key: find_secrets(record[key], secrets) for key in keys if key in record}
    if not secrets:
        return record
    counted = dict(sorted(secrets.items()))
    if options.secrets == "refuse":
        listed = ", ".join(f"{kind} {count}" for kind, count in counted.items())
        return BadRow(
            reason="secret",
            message=f"line {line}: the session holds secrets ({listed}); pass secrets='mask', which replaces them, or 'keep'",
        )
    if options.secrets == "mask":
        record |= masked
    record["secrets"] = counted
    return record
