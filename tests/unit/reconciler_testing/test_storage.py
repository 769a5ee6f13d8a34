"""The history against a model: whatever is written, past states and streams agree with it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.testing.storage import ADDED, DELETED, MODIFIED, HistoryCut, Key, Storage

PODS: Key = ("", "pods")
NODES: Key = ("", "nodes")

Step = tuple[Key, str]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([PODS, NODES]), st.sampled_from("abcd")),
        st.just("compact"),
    ),
    max_size=60,
)


def run(
    steps: Sequence[Step | str], history: int
) -> tuple[Storage, dict[int, dict[str, int]], int]:
    """Toggle or touch objects; the storage, the pods at each version, and the last compaction."""
    storage = Storage(history=history, changed=lambda _: None)
    pods: dict[str, int] = {}
    states = {storage.version: dict(pods)}
    compacted = 0
    for at, step in enumerate(steps):
        if isinstance(step, str):
            storage.compact()
            compacted = storage.version
            continue
        key, path = step
        there = storage.get(key, path) is not None
        kind = (DELETED if at % 3 == 0 else MODIFIED) if there else ADDED
        stored = storage.commit(key, kind, path, {"metadata": {"name": path}})
        if key == PODS and kind == DELETED:
            del pods[path]
        elif key == PODS:
            pods[path] = stored.version
        states[storage.version] = dict(pods)
    return storage, states, compacted


@given(steps=STEPS, history=st.integers(1, 20))
def test_every_remembered_state_can_be_listed(steps: list[Step | str], history: int) -> None:
    storage, states, compacted = run(steps, history)
    refused: list[tuple[int, int]] = []
    for version, state in states.items():
        try:
            at, found = storage.snapshot(PODS, version)
        except HistoryCut as cut:
            refused.append((version, cut.floor))
            continue
        assert at == version
        assert {stored.path: stored.version for stored in found} == state
        assert [stored.path for stored in found] == sorted(state)
    # What is forgotten is the older part, and no more than need be.
    assert all(version < floor <= storage.version for version, floor in refused)
    assert all(version < compacted or len(steps) > history for version, _ in refused)


@given(steps=STEPS, history=st.integers(1, 20), step=st.integers(1, 5))
def test_events_lead_from_any_remembered_state_to_the_present(
    steps: list[Step | str], history: int, step: int
) -> None:
    storage, states, _ = run(steps, history)
    for version, state in states.items():
        try:
            cursor = storage.cursor(PODS, version)
        except HistoryCut:
            continue
        model, reached = dict(state), version
        while True:
            events, reached = storage.read(PODS, cursor, step)
            if not events:
                break
            cursor += len(events)
            for event in events:
                assert event.now.version > version
                if event.type == DELETED:
                    del model[event.now.path]
                else:
                    assert (event.type == ADDED) == (event.now.path not in model)
                    model[event.now.path] = event.now.version
        assert model == states[storage.version]
        assert reached == storage.version


def test_a_reader_behind_the_history_is_told() -> None:
    storage = Storage(history=2, changed=lambda _: None)
    cursor = storage.cursor(PODS)
    storage.commit(PODS, ADDED, "a", {"metadata": {}})
    for _ in range(4):
        storage.commit(PODS, MODIFIED, "a", {"metadata": {}})
    with pytest.raises(HistoryCut):
        storage.read(PODS, cursor, 10)
    assert storage.count() == 1
