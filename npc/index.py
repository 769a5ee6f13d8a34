"""Finding the objects that a selector selects without looking at every one of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from npc.selector import Operator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npc.selector import Requirement, Selector


class Labelled(Protocol):
    """Anything with labels."""

    @property
    def labels(self) -> Mapping[str, str]: ...


T = TypeVar("T", bound=Labelled)


class LabelIndex(Generic[T]):
    """Objects by label. Built once for a sync and not changed."""

    def __init__(self, objects: Iterable[T]) -> None:
        self._objects = list(objects)
        self._by_key: defaultdict[str, list[T]] = defaultdict(list)
        self._by_label: defaultdict[tuple[str, str], list[T]] = defaultdict(list)
        for found in self._objects:
            for key, value in found.labels.items():
                self._by_key[key].append(found)
                self._by_label[key, value].append(found)

    def select(self, selector: Selector) -> Sequence[T]:
        """The objects that the selector selects."""
        candidates, by = self._objects, None
        for requirement in selector.requirements:
            found = self._candidates(requirement)
            if found is not None and len(found) <= len(candidates):
                candidates, by = found, requirement
        rest = [r for r in selector.requirements if r is not by]
        if not rest:
            return candidates
        return [c for c in candidates if all(r.matches(c.labels) for r in rest)]

    def _candidates(self, requirement: Requirement) -> list[T] | None:
        """Exactly the objects that meet the requirement, where the index knows them."""
        if requirement.operator is Operator.EXISTS:
            return self._by_key.get(requirement.key, [])
        if requirement.operator is Operator.IN:
            lists = [
                self._by_label.get((requirement.key, v), []) for v in sorted(requirement.values)
            ]
            return lists[0] if len(lists) == 1 else [found for part in lists for found in part]
        return None
