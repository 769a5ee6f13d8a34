"""The pictures of the documents can be drawn anew from the agent as it is."""

from __future__ import annotations

import pytest

from scripts.pictures import trace
from scripts.pictures.trace import EVENT, SYNC

pytestmark = pytest.mark.netns


def test_a_burst_is_recorded_with_its_syncs_tools_and_events() -> None:
    spans = trace.record()
    syncs = [span for span in spans if span.name == SYNC]
    events = {span.id for span in spans if span.name == EVENT}
    assert sum(sync.attributes["messaging.batch.message_count"] for sync in syncs) == 30
    assert {link for sync in syncs for link in sync.links} == events != set()
    assert {"compile", "apply", "ipset", "iptables-nft-restore"} <= {span.name for span in spans}
    assert trace.draw(spans).startswith("<svg ")
