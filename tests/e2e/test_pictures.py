"""The pictures of the documents can be drawn anew from the agent as it is."""

from __future__ import annotations

import pytest

from scripts.pictures import dashboard, trace
from scripts.pictures.panels import draw
from scripts.pictures.trace import EVENT, SYNC
from tests.telemetry.processes import has_prometheus

pytestmark = pytest.mark.netns


def test_a_burst_is_recorded_with_its_syncs_tools_and_events() -> None:
    spans = trace.record()
    syncs = [span for span in spans if span.name == SYNC]
    events = {span.id for span in spans if span.name == EVENT}
    assert sum(sync.attributes["messaging.batch.message_count"] for sync in syncs) == 30
    assert {link for sync in syncs for link in sync.links} == events != set()
    assert {"compile", "apply", "ipset", "iptables-nft-restore"} <= {span.name for span in spans}
    assert trace.draw(spans).startswith("<svg ")


@pytest.mark.skipif(not has_prometheus(), reason="no prometheus on PATH (Debian: prometheus)")
@pytest.mark.timeout(120)
def test_every_panel_of_the_dashboard_has_something_to_show() -> None:
    with dashboard.churned(8) as measured:
        panels = measured.panels()
    assert panels
    empty = [panel.title for panel in panels if panel.kind != "row" and not panel.series]
    assert empty == []
    assert draw(panels, "dashboard").count("<text") > len(panels)
