"""Objects of an author's own types, and of none: both say the same of their metadata."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from reconciler.meta import FullMeta, OwnerReference, Request, Typed, Unstructured, key_of


class Spec(msgspec.Struct, rename="camel", frozen=True):
    max_size: int = 1


class Shelf(Typed, frozen=True):
    spec: Spec = Spec()
    in_use: bool | None = None


FULL = {
    "apiVersion": "example.com/v1",
    "kind": "Shelf",
    "metadata": {
        "namespace": "shop",
        "name": "a",
        "uid": "1-2",
        "resourceVersion": "7",
        "generation": 3,
        "labels": {"app": "web"},
        "annotations": {"note": "x"},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "Set", "name": "s", "uid": "9", "controller": True},
            {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "8"},
        ],
        "creationTimestamp": None,
    },
    "spec": {"maxSize": 4, "unknown": [1]},
    "inUse": True,
}
BARE = {"metadata": {"name": "a", "labels": None, "annotations": None, "ownerReferences": None}}


@pytest.mark.parametrize("decode", [Shelf.decode, Unstructured.decode])
def test_metadata_reads_the_same(decode: Callable[[bytes], FullMeta]) -> None:
    obj = decode(json.dumps(FULL).encode())
    assert key_of(obj) == Request("shop", "a")
    assert (obj.uid, obj.resource_version, obj.generation) == ("1-2", "7", 3)
    assert (obj.labels, obj.annotations) == ({"app": "web"}, {"note": "x"})
    assert list(obj.owner_references) == [
        OwnerReference("apps/v1", "Set", "s", "9", controller=True),
        OwnerReference("v1", "Node", "n", "8"),
    ]
    assert [owner.group for owner in obj.owner_references] == ["apps", ""]


@pytest.mark.parametrize("decode", [Shelf.decode, Unstructured.decode])
def test_metadata_may_be_bare(decode: Callable[[bytes], FullMeta]) -> None:
    obj = decode(json.dumps(BARE).encode())
    assert key_of(obj) == Request("", "a")
    assert (obj.uid, obj.resource_version, obj.generation) == ("", "", 0)
    assert (obj.labels, obj.annotations, list(obj.owner_references)) == ({}, {}, [])


def test_a_type_names_the_fields_that_are_read() -> None:
    shelf = Shelf.decode(json.dumps(FULL).encode())
    assert (shelf.spec.max_size, shelf.in_use) == (4, True)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` .*maxSize"):
        Shelf.decode(json.dumps({**BARE, "spec": {"maxSize": "4"}}).encode())
    with pytest.raises(msgspec.ValidationError, match="missing required field `metadata`"):
        Shelf.decode(b"{}")


def test_what_has_no_type_is_kept_as_it_came_until_its_data_is_read() -> None:
    containers = [{"name": f"c{i}", "ports": [{"port": i}], "env": []} for i in range(20)]
    raws = [
        json.dumps({**FULL, "number": number, "containers": containers}).encode()
        for number in range(100)
    ]
    pages = [b"[" + raw + b"]" for raw in raws]
    tracemalloc.start()
    try:
        objects = [
            Unstructured.decode(msgspec.json.decode(page, type=list[msgspec.Raw])[0])
            for page in pages
        ]
        assert {obj.name for obj in objects} == {"a"}
        unread, _ = tracemalloc.get_traced_memory()
        read = [obj.data for obj in objects]
        decoded, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = sum(map(len, raws))
    assert unread < size + 2000 * len(raws) < decoded
    assert [data["number"] for data in read] == list(range(100))
    assert all(obj.data is data for obj, data in zip(objects, read, strict=True))


def test_what_has_no_type_may_be_made_of_a_dictionary() -> None:
    obj = Unstructured(FULL)
    assert (key_of(obj), obj.generation, obj.data) == (Request("shop", "a"), 3, FULL)
    assert str(obj) == "Unstructured(Shelf shop/a@7)"
    for data in ({}, {"metadata": None}):
        with pytest.raises(msgspec.ValidationError, match="metadata"):
            Unstructured(data)
        with pytest.raises(msgspec.ValidationError, match="metadata"):
            Unstructured.decode(json.dumps(data).encode())
