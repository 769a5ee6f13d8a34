"""Carries scenarios out, and says what became of each probe."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npc.lab.cluster import Cluster, cluster
from npc.lab.netns import LabError
from npc.lab.scenario import Expect
from npc.lab.topology import Host
from npc.lab.traffic import SILENCE, Outcome, Probe, Verdict

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from npc.lab.agents import Enforcement
    from npc.lab.runs import Run
    from npc.lab.scenario import Expectation, Scenario, Step
    from npc.ruleset import Family

_WAYS_TO_DENY = (Expect.DROP, Expect.REJECT)
_PATIENCE = 10.0
"""Seconds for what should be allowed: a busy machine is no denial."""


_Held = dict[tuple[str, "Family"], "socket.socket"]


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
        return self.got is self.probe.expect

    @property
    def got(self) -> Expect | Verdict:
        """What became of it; where the expectation says how it is denied, so does this."""
        if self.outcome.verdict is Verdict.ERROR:
            return Verdict.ERROR
        if self.outcome.verdict is Verdict.DENY and self.probe.expect in _WAYS_TO_DENY:
            return Expect.DROP if self.outcome.silent else Expect.REJECT
        return Expect(self.outcome.verdict.value)


def control(scenario: Scenario) -> Scenario:
    """The same scenario where nothing enforces: every probe is allowed.

    If it goes otherwise, its denials may come from something else than enforcement.
    """
    steps = (
        replace(step, probes=tuple(replace(p, expect=Expect.ALLOW) for p in step.probes))
        for step in scenario.steps
    )
    return replace(scenario, steps=tuple(steps))


def run_all(
    run: Run, scenarios: Sequence[Scenario], enforcement: Enforcement | None
) -> Iterator[tuple[Scenario, list[Result]]]:
    """Run each scenario in its turn; its results, in the order of the probes.

    A scenario whose nodes are the first of another's shares its cluster, emptied in between, if
    they agree in all else that makes a cluster. Without ``enforcement`` no agent runs, and every
    probe should be allowed: see ``control``.

    :raises AgentError: if an agent does not do its work
    :raises LabError: if a scenario asks for what cannot be, or the lab itself fails
    """
    waiting = sorted(scenarios, key=lambda s: len(s.nodes), reverse=True)
    while waiting:
        first = waiting[0]
        fitting = [s for s in waiting if _fits(s, first)]
        waiting = [s for s in waiting if s not in fitting]
        with cluster(
            run,
            first.nodes,
            enforcement=enforcement,
            families=first.families,
            bridged=first.network == "bridged",
            options=first.agent,
        ) as lab:
            for scenario in fitting:
                yield scenario, _run(lab, scenario)
                lab.reset()


def _fits(scenario: Scenario, other: Scenario) -> bool:
    return scenario.nodes == other.nodes[: len(scenario.nodes)] and (
        (scenario.families, scenario.network, scenario.agent)
        == (other.families, other.network, other.agent)
    )


def _run(lab: Cluster, scenario: Scenario) -> list[Result]:
    for host in scenario.outside:
        lab.add_outside(host.name, host.addresses, host.mtu)
    for manifest in scenario.objects:
        with _at(scenario, manifest.line):
            lab.apply(manifest)
    lab.serve(scenario.ports)
    with _at(scenario, scenario.line):
        lab.set_services(scenario.services)
    held: _Held = {}
    try:
        return [result for step in scenario.steps for result in _step(lab, scenario, step, held)]
    finally:
        for connection in held.values():
            connection.close()


def _step(lab: Cluster, scenario: Scenario, step: Step, held: _Held) -> list[Result]:
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
        for family, probe in _probes(lab, scenario, expectation, held)
    ]
    outcomes = lab.traffic.probe(probe for _, _, probe in wanted)
    for (expectation, family, _), outcome in zip(wanted, outcomes, strict=True):
        if expectation.hold is not None and outcome.held is not None:
            held[expectation.hold, family] = outcome.held
    return [
        Result(scenario, step, expectation, family, outcome)
        for (expectation, family, _), outcome in zip(wanted, outcomes, strict=True)
    ]


def _probes(
    lab: Cluster, scenario: Scenario, expectation: Expectation, held: _Held
) -> list[tuple[Family, Probe]]:
    """The packets for an expectation, in each family in which both ends have an address.

    :raises LabError: if there is no such family
    """
    if expectation.over is not None:
        # Where it is not held, the probe that should have left it went wrong, and says so.
        families = [f for f in scenario.families if (expectation.over, f) in held]
    else:
        families = list(scenario.families)
    with _at(scenario, expectation.line):
        found = [
            (family, probe)
            for family in families
            if (probe := _probe(lab, scenario, expectation, family, held)) is not None
        ]
        if not found and expectation.over is None:
            raise LabError(
                f"{expectation.source} and {expectation.target} have no addresses of one family"
            )
    return found


def _probe(
    lab: Cluster, scenario: Scenario, expectation: Expectation, family: Family, held: _Held
) -> Probe | None:
    """An expectation's packets, or ``None`` where an end has no address of that family."""
    source = lab.host(expectation.source)
    space, _, rest = expectation.target.partition("/")
    if space == "ip":
        target = Host("", (rest,))
    elif space == "service":
        target = next(Host("", s.addresses) for s in scenario.services if s.name == rest)
    else:
        target = lab.host(expectation.target)
    address = target.address(family.value)
    if address is None or source.address(family.value) is None:
        return None
    return Probe(
        source,
        address,
        expectation.port or 0,
        expectation.protocol,
        patience=_PATIENCE if expectation.expect is Expect.ALLOW else SILENCE,
        size=expectation.size,
        hold=expectation.hold is not None,
        over=None if expectation.over is None else held[expectation.over, family],
    )


@contextmanager
def _at(scenario: Scenario, line: int) -> Iterator[None]:
    """Within the block, an error of the lab's names the line of the scenario that it is about."""
    try:
        yield
    except LabError as error:
        raise type(error)(f"{scenario.path}:{line}: {error}") from error
