"""Label selectors: what they mean, and one form for all that mean the same."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Operator(enum.Enum):
    """How a requirement compares a label."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. ``values`` is empty but for ``IN`` and ``NOT_IN``."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels fulfil it; ``NotIn`` and ``DoesNotExist`` match a missing label."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None

    def canonical(self) -> tuple[str, str, list[str]]:
        """The requirement as plain values that can be sorted."""
        return self.key, self.operator.value, sorted(self.values)


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all be met; none means everything matches."""

    requirements: frozenset[Requirement] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def canonical(self) -> list[tuple[str, str, list[str]]]:
        """Plain values, equal for equal selectors whatever order they were written in."""
        return sorted(requirement.canonical() for requirement in self.requirements)


EVERYTHING = Selector()
