"""Every scenario, with real packets, with every backend, on one family and on two."""

from __future__ import annotations

from pathlib import Path

import pytest

from npc.lab import runner, scenario
from npc.lab.agents import Enforcement
from npc.lab.runs import Run
from npc.lab.scenario import Expect
from npc.ruleset import Family

pytestmark = pytest.mark.netns

ENFORCED = [
    Enforcement("restore", "nft"),
    Enforcement("restore", "legacy"),
    Enforcement("nftables"),
]
BOTH = (Family.IPV4, Family.IPV6)
FILES = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("enforcement", ENFORCED, ids=lambda e: f"{e.backend}-{e.mode}")
@pytest.mark.parametrize(
    "families", [(Family.IPV4,), (Family.IPV6,), BOTH], ids=["ipv4", "ipv6", "dual"]
)
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_probe_goes_as_the_scenarios_say(
    file: Path, families: tuple[Family, ...], enforcement: Enforcement
) -> None:
    scenarios = scenario.read(str(file), families)
    with Run() as run:
        results = [r for _, found in runner.run_all(run, scenarios, enforcement) for r in found]
    wrong = [
        f"{file.name}:{r.probe.line}: {r.family}: expected {r.probe.expect.value}, got {r.outcome}"
        for r in results
        if not r.as_expected
    ]
    assert not wrong
    assert {r.scenario.name for r in results} == {s.name for s in scenarios}


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_without_agents_everything_is_allowed_so_that_denials_come_from_them(file: Path) -> None:
    scenarios = scenario.read(str(file), BOTH)
    with Run() as run:
        found = [r for _, f in runner.run_all(run, scenarios, None) for r in f]
    closed = [f"{file.name}:{r.probe.line}: {r.family}: {r.outcome}" for r in found if not r.open]
    assert not closed


def test_every_file_shows_something_allowed_and_something_denied() -> None:
    assert FILES
    for file in FILES:
        for found in scenario.read(str(file)):
            verdicts = {probe.expect for step in found.steps for probe in step.probes}
            assert Expect.ALLOW in verdicts, f"{file.name}: {found.name}"
            assert verdicts > {Expect.ALLOW}, f"{file.name}: {found.name}"
