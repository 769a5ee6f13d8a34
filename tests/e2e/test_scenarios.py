"""Every scenario, with real packets, with every backend, on one family and on two."""

from __future__ import annotations

from pathlib import Path

import pytest

from npc.lab import runner, scenario
from npc.lab.agents import Enforcement
from npc.lab.runs import Run
from npc.lab.scenario import Expect
from npc.ruleset import Family

pytestmark = [pytest.mark.netns, pytest.mark.timeout(240)]

ENFORCED = [
    Enforcement("restore", "nft"),
    Enforcement("restore", "legacy"),
    Enforcement("nftables"),
    Enforcement("libiptc", "legacy"),
]
BOTH = (Family.IPV4, Family.IPV6)
# Two families show what each of them does; with one alone it is the others' absence that matters.
CASES = [
    *((BOTH, enforcement) for enforcement in ENFORCED),
    *(((family,), ENFORCED[0]) for family in Family),
    ((Family.IPV6,), Enforcement("nftables")),
]
FILES = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))


def _name(value: object) -> str | None:
    match value:
        case Enforcement():
            return f"{value.backend}-{value.mode}"
        case tuple():
            return "-".join(family.name.lower() for family in value)
    return None


@pytest.mark.parametrize(("families", "enforcement"), CASES, ids=_name)
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
    scenarios = [runner.control(found) for found in scenario.read(str(file), BOTH)]
    with Run() as run:
        results = [r for _, found in runner.run_all(run, scenarios, None) for r in found]
    assert not [
        f"{file.name}:{r.probe.line}: {r.family}: {r.outcome}" for r in results if not r.as_expected
    ]


def test_every_file_shows_something_allowed_and_something_denied() -> None:
    assert FILES
    for file in FILES:
        for found in scenario.read(str(file)):
            verdicts = {probe.expect for step in found.steps for probe in step.probes}
            assert Expect.ALLOW in verdicts, f"{file.name}: {found.name}"
            assert verdicts > {Expect.ALLOW}, f"{file.name}: {found.name}"
