"""Every scenario, with real packets, in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from npc.lab import runner, scenario
from npc.lab.runs import Run

pytestmark = pytest.mark.netns

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("mode", ["nft", "legacy"])
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_probe_goes_as_the_scenarios_say(file: Path, mode: str) -> None:
    scenarios = scenario.read(str(file))
    with Run() as run:
        results = [r for _, found in runner.run_all(run, scenarios, mode) for r in found]
    wrong = [
        f"{file.name}:{r.probe.line}: expected {r.probe.expect.value}, got {r.outcome}"
        for r in results
        if not r.as_expected
    ]
    assert not wrong
    assert {r.scenario.name for r in results} == {s.name for s in scenarios}


def test_every_file_shows_something_allowed_and_something_denied() -> None:
    assert FILES
    for file in FILES:
        for found in scenario.read(str(file)):
            verdicts = {probe.expect for step in found.steps for probe in step.probes}
            assert len(verdicts) == 2, f"{file.name}: {found.name}"
