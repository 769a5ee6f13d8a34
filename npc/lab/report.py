"""What a run of scenarios prints: a line for each, and every probe that went otherwise."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from npc.lab.runner import Result
    from npc.lab.scenario import Scenario


def as_json(result: Result) -> str:
    """One probe as a line of JSON."""
    probe, outcome = result.probe, result.outcome
    return json.dumps(
        {
            "scenario": result.scenario.name,
            "step": result.step.name,
            "from": probe.source,
            "to": probe.target,
            "port": probe.port,
            "protocol": probe.protocol.value,
            "family": result.family.name.lower(),
            "expect": probe.expect.value,
            "got": result.got.value,
            "milliseconds": round(outcome.milliseconds, 1),
        }
    )


def print_scenario(
    console: Console, scenario: Scenario, results: list[Result], seconds: float
) -> None:
    """One line for the scenario, and one for each mismatch."""
    wrong = [result for result in results if not result.as_expected]
    mark = ("FAIL  ", "bold red") if wrong else ("  ok  ", "green")
    console.print(
        Text.assemble(
            mark,
            scenario.name,
            (f"  {len(results)} probes in {seconds:.1f} s", "dim"),
        ),
        soft_wrap=True,
    )
    for result in wrong:
        probe, outcome = result.probe, result.outcome
        detail = f" ({outcome.detail})" if outcome.detail else ""
        console.print(
            Text(
                f"      {result.scenario.path}:{probe.line}: {result.step.name}: "
                f"{probe} {result.family.name.lower()}: expected {probe.expect.value}, "
                f"got {result.got.value}{detail}",
                style="red",
            ),
            soft_wrap=True,
        )
