"""Label selectors: the text form of queries and the structured form of specs, as predicates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Labels = Mapping[str, str]
    Selector = Callable[[Labels], bool]

# A comma between requirements is one that no parenthesis encloses.
_COMMA = re.compile(r",(?![^(]*\))")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUALITY = re.compile(r"(?P<key>[^\s=!]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s=!]*)")
_KEY = re.compile(r"(?P<not>!?)\s*(?P<key>[^\s=!(),]+)")


def everything(_labels: Labels) -> bool:
    """Select whatever there is."""
    return True


def parse(text: str) -> Selector:
    """Make a selector of a text like ``app=web,tier in (a, b),!canary``. Empty selects everything.

    :raises ValueError: if the text is no selector
    """
    if not text.strip():
        return everything
    return _all([_parse_one(part.strip()) for part in _COMMA.split(text)])


def of_spec(spec: Mapping[str, Any] | None) -> Selector:
    """Make a selector of a spec's ``LabelSelector``. Empty selects everything, none nothing.

    :raises ValueError: if an operator is unknown
    """
    if spec is None:
        return lambda _labels: False
    required = [_one(key, "In", (value,)) for key, value in (spec.get("matchLabels") or {}).items()]
    for expression in spec.get("matchExpressions") or ():
        values = tuple(expression.get("values") or ())
        required.append(_one(expression["key"], expression["operator"], values))
    return _all(required)


def _parse_one(text: str) -> Selector:
    if match := _SET.fullmatch(text):
        values = tuple(value.strip() for value in match["values"].split(","))
        return _one(match["key"], "In" if match["operator"] == "in" else "NotIn", values)
    if match := _EQUALITY.fullmatch(text):
        operator = "NotIn" if match["operator"] == "!=" else "In"
        return _one(match["key"], operator, (match["value"],))
    if match := _KEY.fullmatch(text):
        return _one(match["key"], "DoesNotExist" if match["not"] else "Exists", ())
    raise ValueError(f"not a label selector: {text!r}")


def _one(key: str, operator: str, values: tuple[str, ...]) -> Selector:
    match operator:
        case "In":
            return lambda labels: key in labels and labels[key] in values
        case "NotIn":
            return lambda labels: key not in labels or labels[key] not in values
        case "Exists":
            return lambda labels: key in labels
        case "DoesNotExist":
            return lambda labels: key not in labels
        case _:
            raise ValueError(f"unknown operator {operator!r}")


def _all(required: list[Selector]) -> Selector:
    return lambda labels: all(requirement(labels) for requirement in required)
