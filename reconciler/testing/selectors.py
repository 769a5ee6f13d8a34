"""Label and field selectors of list and watch requests: parsed once per request, then asked for
every object.

The label grammar is Kubernetes' own: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`,
`!a`, `a>1`, `a<1`, joined by commas. Field selectors know `=`, `==` and `!=`, and only the fields
that the resource declares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reconciler.testing.errors import bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET = re.compile(rf"^({_NAME})\s+(in|notin)\s*\(([^()]*)\)$")
_COMPARE = re.compile(rf"^({_NAME})\s*(==|=|!=|>|<)\s*([-A-Za-z0-9_.]*)$")
_EXISTS = re.compile(rf"^(!?)\s*({_NAME})$")
_COMMA = re.compile(r",(?![^()]*\))")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. `op`: `in`, `notin`, `exists`, `missing`, `>`, `<`."""

    key: str
    op: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` fulfil it. A missing label fulfils `notin`, as in Kubernetes."""
        value = labels.get(self.key)
        match self.op:
            case "in":
                return isinstance(value, str) and value in self.values
            case "notin":
                return not (isinstance(value, str) and value in self.values)
            case "exists":
                return value is not None
            case "missing":
                return value is None
            case _:
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        try:
            left, right = int(value or ""), int(next(iter(self.values)))
        except (ValueError, TypeError):
            return False
        return left > right if self.op == ">" else left < right


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One condition on one field."""

    path: tuple[str, ...]
    value: str
    equal: bool


@dataclass(frozen=True, slots=True)
class Selector:
    """All conditions of one request. True (as a bool) when there is any."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[FieldTerm, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields)

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Whether `obj` fulfils every condition. An absent field reads as the empty string."""
        for term in self.fields:
            value: Any = obj
            for part in term.path:
                value = value.get(part) if isinstance(value, dict) else None
            if (("" if value is None else str(value)) == term.value) != term.equal:
                return False
        if not self.labels:
            return True
        found = obj["metadata"].get("labels")
        # An object that was let in unchecked may have anything in place of its labels.
        labels = found if isinstance(found, dict) else {}
        return all(requirement.matches(labels) for requirement in self.labels)


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The conditions of a `labelSelector` parameter. Raises `ApiError` 400."""
    terms = [term.strip() for term in _COMMA.split(text)] if text.strip() else []
    return tuple(_label_term(term, text) for term in terms)


def _label_term(term: str, text: str) -> Requirement:
    if found := _SET.match(term):
        key, op, inner = found.groups()
        return Requirement(key, op, frozenset(value.strip() for value in inner.split(",")))
    if found := _COMPARE.match(term):
        key, op, value = found.groups()
        if op in ("<", ">"):
            if not value.lstrip("-").isdigit():
                raise bad_request(
                    f"unable to parse requirement: values[0]: Invalid value: {value!r}: must be "
                    "an integer"
                )
            return Requirement(key, op, frozenset({value}))
        return Requirement(key, "notin" if op == "!=" else "in", frozenset({value}))
    if found := _EXISTS.match(term):
        bang, key = found.groups()
        return Requirement(key, "missing" if bang else "exists")
    raise bad_request(f"unable to parse requirement: found '{term}' in label selector '{text}'")


def parse_fields(text: str, known: Sequence[str], group_version: str) -> tuple[FieldTerm, ...]:
    """The conditions of a `fieldSelector` parameter; `known` are the fields allowed. Raises
    `ApiError` 400.
    """
    terms = []
    for part in text.split(",") if text.strip() else []:
        found = re.match(r"^\s*([^=!\s]+)\s*(==|=|!=)\s*(.*?)\s*$", part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        name, op, value = found.groups()
        if name not in known:
            raise bad_request(
                f'Unable to find "{group_version}" that match label selector "", field selector '
                f'"{text}": '
                f"field label not supported: {name}"
            )
        terms.append(FieldTerm(tuple(name.split(".")), value, op != "!="))
    return tuple(terms)
