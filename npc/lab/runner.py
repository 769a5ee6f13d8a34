"""Carries scenarios out, and says what became of each probe."""

from __future__ import annotations

import ipaddress
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npc.lab.cluster import Cluster, cluster
from npc.lab.netns import LabError
from npc.lab.traffic import SILENCE, Outcome, Probe, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npc.lab.agents import Enforcement
    from npc.lab.runs import Run
    from npc.lab.scenario import Expectation, Scenario, Step
    from npc.ruleset import Family

_PATIENCE = 10.0
"""Seconds for what should be allowed: a busy machine is no denial."""


@dataclass(frozen=True)
class Result:
    """One probe in one family."""

    scenario: Scenario
    step: Step
    probe: Expectation
    family: Family
    outcome: Outcome

    @property
    def as_expected(self) -> bool:
        """Whether the probe went as the scenario says."""
        return self.outcome.verdict is self.probe.expect

    @property
    def open(self) -> bool:
        """Whether nothing stopped the probe, whatever the scenario says."""
        return self.outcome.verdict is Verdict.ALLOW


def run_all(
    run: Run, scenarios: Sequence[Scenario], enforcement: Enforcement | None
) -> Iterator[tuple[Scenario, list[Result]]]:
    """Run each scenario in its turn; its results, in the order of the probes.

    A scenario whose nodes are the first of another's, in the same families, shares its cluster,
    emptied in between. Without ``enforcement`` no agent runs, and every probe should be allowed.

    :raises AgentError: if an agent does not do its work
    :raises LabError: if a scenario asks for what cannot be, or the lab itself fails
    """
    waiting = sorted(scenarios, key=lambda s: len(s.nodes), reverse=True)
    while waiting:
        nodes, families = waiting[0].nodes, waiting[0].families
        fitting = [
            s for s in waiting if s.nodes == nodes[: len(s.nodes)] and s.families == families
        ]
        waiting = [s for s in waiting if s not in fitting]
        with cluster(run, nodes, enforcement=enforcement, families=families) as lab:
            for scenario in fitting:
                yield scenario, _run(lab, scenario)
                lab.reset()


def _run(lab: Cluster, scenario: Scenario) -> list[Result]:
    for name, addresses in scenario.outside:
        lab.add_outside(name, addresses)
    for manifest in scenario.objects:
        with _at(scenario, manifest.line):
            lab.apply(manifest)
    lab.serve(scenario.ports)
    return [result for step in scenario.steps for result in _step(lab, scenario, step)]


def _step(lab: Cluster, scenario: Scenario, step: Step) -> list[Result]:
    for patch in step.patch:
        target = patch.target
        with _at(scenario, target.line):
            lab.patch(target.kind, target.namespace, target.name, patch.merge)
    for manifest in step.apply:
        with _at(scenario, manifest.line):
            lab.apply(manifest)
    for reference in step.delete:
        with _at(scenario, reference.line):
            lab.delete(reference.kind, reference.namespace, reference.name)
    with _at(scenario, step.line):
        lab.settle()

    wanted = [
        (expectation, family, probe)
        for expectation in step.probes
        for family, probe in _probes(lab, scenario, expectation)
    ]
    outcomes = lab.traffic.probe(probe for _, _, probe in wanted)
    return [
        Result(scenario, step, expectation, family, outcome)
        for (expectation, family, _), outcome in zip(wanted, outcomes, strict=True)
    ]


def _probes(
    lab: Cluster, scenario: Scenario, expectation: Expectation
) -> list[tuple[Family, Probe]]:
    """The packets for an expectation, in each family in which both ends have an address.

    :raises LabError: if there is no such family
    """
    with _at(scenario, expectation.line):
        found = [
            (family, probe)
            for family in scenario.families
            if (probe := _probe(lab, expectation, family)) is not None
        ]
        if not found:
            raise LabError(
                f"{expectation.source} and {expectation.target} have no addresses of one family"
            )
    return found


def _probe(lab: Cluster, expectation: Expectation, family: Family) -> Probe | None:
    """An expectation's packets, or ``None`` where an end has no address of that family."""
    source = lab.host(expectation.source)
    space, _, rest = expectation.target.partition("/")
    if space == "ip":
        address = rest if ipaddress.ip_address(rest).version == family.value else None
    else:
        address = lab.host(expectation.target).address(family.value)
    if address is None or source.address(family.value) is None:
        return None
    patience = _PATIENCE if expectation.expect is Verdict.ALLOW else SILENCE
    return Probe(source, address, expectation.port, expectation.protocol, patience)


@contextmanager
def _at(scenario: Scenario, line: int) -> Iterator[None]:
    """Within the block, an error of the lab's names the line of the scenario that it is about."""
    try:
        yield
    except LabError as error:
        raise type(error)(f"{scenario.path}:{line}: {error}") from error
