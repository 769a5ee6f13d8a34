"""The label index finds what a selector matches, no more and no less."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from npc.index import LabelIndex
from npc.selector import Operator, Requirement, Selector
from tests.property.npc.strategies import KEYS, VALUES, labels

values = st.frozensets(st.sampled_from(VALUES), min_size=1)
requirements = st.one_of(
    st.builds(
        Requirement,
        st.sampled_from(KEYS),
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        values,
    ),
    st.builds(
        Requirement,
        st.sampled_from(KEYS),
        st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST]),
    ),
)
selectors = st.builds(Selector, st.frozensets(requirements, max_size=3))


@dataclass(frozen=True)
class Thing:
    labels: dict[str, str]


@given(st.lists(labels), selectors)
def test_the_index_agrees_with_the_selector(all_labels: list[dict[str, str]], s: Selector) -> None:
    things = [Thing(found) for found in all_labels]
    selected = LabelIndex(things).select(s)
    assert len(selected) == len({id(thing) for thing in selected})
    assert {id(t) for t in selected} == {id(t) for t in things if s.matches(t.labels)}


@given(selectors, selectors)
def test_the_canonical_form_is_equal_exactly_for_equal_selectors(a: Selector, b: Selector) -> None:
    assert (a.canonical() == b.canonical()) == (a == b)


@given(labels)
def test_the_operators_mean_what_the_api_says(found: dict[str, str]) -> None:
    here = "app" in found
    assert Requirement("app", Operator.EXISTS).matches(found) == here
    assert Requirement("app", Operator.DOES_NOT_EXIST).matches(found) != here
    x = frozenset({"x"})
    assert Requirement("app", Operator.IN, x).matches(found) == (here and found["app"] == "x")
    assert Requirement("app", Operator.NOT_IN, x).matches(found) != (here and found["app"] == "x")
