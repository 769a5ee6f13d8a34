"""Stores, their indexes, and reading them by namespace and label."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.index import NAMESPACE, by_namespace
from reconciler.lister import Lister
from reconciler.meta import Request, Unstructured, key_of
from reconciler.selector import of_spec, parse
from reconciler.store import Store


def obj(name: str, namespace: str = "ns", **labels: str) -> Unstructured:
    return Unstructured({"metadata": {"namespace": namespace, "name": name, "labels": labels}})


def store(*objects: Unstructured) -> Store[Unstructured]:
    made: Store[Unstructured] = Store()
    for each in objects:
        made.put(each)
    return made


def apps(o: Unstructured) -> list[str]:
    return o.labels.get("app", "").split()


def names(objects: list[Unstructured]) -> list[str]:
    return sorted(o.name for o in objects)


def test_an_index_follows_every_change() -> None:
    s = store(obj("a", app="x y"), obj("b", app="x"))
    s.add_index("app", apps)
    assert names(s.by_index("app", "x")) == ["a", "b"]
    assert s.index_values("app") == ["x", "y"]

    s.put(obj("a", app="z"))
    assert names(s.by_index("app", "x")) == ["b"]
    s.remove(Request("ns", "b"))
    assert s.index_values("app") == ["z"], "a value that nobody has is dropped"

    kept = obj("c", app="y z")
    s.replace({key_of(kept): kept})
    assert s.index_values("app") == ["y", "z"]
    assert names(s.by_index("app", "z")) == ["c"]
    assert s.by_index("app", "nothing") == []


def test_an_index_has_one_name_and_must_be_there() -> None:
    s = store()
    s.add_index("app", apps)
    with pytest.raises(ValueError, match="'app' already"):
        s.add_index("app", apps)
    with pytest.raises(LookupError, match="no index 'role'"):
        s.by_index("role", "x")
    with pytest.raises(LookupError, match="no index 'role'"):
        s.index_values("role")


def test_an_index_that_fails_at_first_is_not_added_and_later_hides_one_object(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def strict(o: Unstructured) -> list[str]:
        return [o.labels["app"]]

    s = store(obj("bare"))
    with pytest.raises(KeyError):
        s.add_index("app", strict)
    assert not s.has_index("app")

    s = store(obj("a", app="x"))
    s.add_index("app", strict)
    s.put(obj("a"))
    s.put(obj("b", app="x"))
    assert names(s.by_index("app", "x")) == ["b"]
    assert len(s) == 2
    assert "index app failed on ns/a" in caplog.text


@pytest.mark.parametrize("indexed", [False, True])
def test_a_lister_reads_by_namespace_name_and_label(*, indexed: bool) -> None:
    s = store(obj("a", "x", app="web"), obj("b", "x"), obj("a", "y", app="web"), obj("n", ""))
    if indexed:
        s.add_index(NAMESPACE, by_namespace)
    lister = Lister(s)
    assert names(lister.list()) == ["a", "a", "b", "n"]
    assert names(lister.list("app=web")) == ["a", "a"]
    assert names(lister.namespace("x").list()) == ["a", "b"]
    assert names(lister.namespace("x").list("!app")) == ["b"]
    found = lister.namespace("y").get("a")
    assert found is not None
    assert found.namespace == "y"
    assert lister.namespace("y").get("b") is None
    assert lister.get("n") is not None
    assert lister.namespace("z").list() == []


LABELS = {"app": "web", "tier": "a", "empty": ""}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("app=web", True),
        ("app == web", True),
        ("app=api", False),
        ("missing=web", False),
        ("empty=", True),
        ("app!=api", True),
        ("app!=web", False),
        ("missing!=web", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("tier in (a, b)", True),
        ("tier in (c)", False),
        ("missing in (a)", False),
        ("tier notin (a,b)", False),
        ("missing notin (a)", True),
        ("app=web,tier in (a,b),!missing", True),
        ("app=web,tier in (c,d)", False),
        ("example.com/name!=x,app", True),
    ],
)
def test_selectors_as_queries_write_them(text: str, *, selected: bool) -> None:
    assert parse(text)(LABELS) is selected


@pytest.mark.parametrize("text", ["a=b=c", "a in b", "a,,b", "a in (b", "=x", "!"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a label selector"):
        parse(text)


@pytest.mark.parametrize(
    ("spec", "selected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "web", "tier": "b"}}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_selectors_as_specs_write_them(spec: Any, *, selected: bool) -> None:
    assert of_spec(spec)(LABELS) is selected


def test_an_operator_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown operator 'Near'"):
        of_spec({"matchExpressions": [{"key": "a", "operator": "Near"}]})
