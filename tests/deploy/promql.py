"""Which metrics and labels an expression of Prometheus' query language names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHERS = re.compile(r"\{([^}]*)\}")
_LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_WORD = re.compile(r"(?<![\w.])([a-zA-Z_:][\w:]*)\s*(\(?)")
_OPERATORS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool", "offset"}
_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Named:
    """``metrics``: as they are written; ``labels``: of matchers and of groupings."""

    metrics: frozenset[str]
    labels: frozenset[str]


def named(expression: str) -> Named:
    """What an expression names. Any word that is no function and no operator is a metric."""
    text = _STRING.sub('""', expression)
    labels: set[str] = set()
    for matchers in _MATCHERS.findall(text):
        labels |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    text = _MATCHERS.sub(" ", text)
    for names in _LABEL_LIST.findall(text):
        labels |= set(re.findall(r"\w+", names))
    text = _RANGE.sub(" ", _LABEL_LIST.sub(" ", text))
    metrics = {
        word for word, bracket in _WORD.findall(text) if not bracket and word not in _OPERATORS
    }
    return Named(frozenset(metrics), frozenset(labels))


def selected(expression: str) -> set[tuple[str, str, str]]:
    """The metrics, labels and values that it selects series by: ``m{l="v"}`` is ``m, l, v``."""
    return {
        (metric, label, value)
        for metric, matchers in re.findall(r"(\w+)\{([^}]*)\}", expression)
        for label, value in re.findall(r'(\w+)="([^"]*)"', matchers)
    }


def documented(page: Path) -> dict[str, frozenset[str]]:
    """The metrics of docs/metrics.md with their labels; a histogram by the names of its series."""
    found: dict[str, frozenset[str]] = {}
    row = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
    for name, kind, cell in row.findall(page.read_text()):
        labels = frozenset(re.findall(r"`(\w+)`", cell))
        if kind == "histogram":
            found |= {f"{name}{suffix}": labels for suffix in _SUFFIXES}
        else:
            found[name] = labels
    return found
