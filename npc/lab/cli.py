"""``npc lab``: a cluster on this machine, out of network namespaces."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import TYPE_CHECKING

from npc.dataplane.choose import BACKENDS
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from npc.lab.agents import Enforcement

UNUSABLE = 2

_FAMILIES = {
    "ipv4": (Family.IPV4,),
    "ipv6": (Family.IPV6,),
    "dual": (Family.IPV4, Family.IPV6),
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``lab`` and its commands."""
    parser = commands.add_parser(
        "lab",
        help="a lab cluster of network namespaces on this machine",
        description="A cluster on one machine: nodes and pods are network namespaces, the control "
        "plane is an in-memory Kubernetes API, the agents and the packets are real. Everything is "
        "inside namespaces of its own and is removed at the end.",
    )
    lab = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = lab.add_parser("demo", help="see a policy close a cluster, and another open a way")
    _add_mode(demo)
    demo.set_defaults(command=_guarded(_demo))

    run = lab.add_parser("run", help="run scenarios with real packets, and compare")
    run.add_argument("scenarios", nargs="+", metavar="SCENARIO.yaml")
    run.add_argument("--json", action="store_true", help="one JSON object for each probe")
    run.add_argument(
        "--control",
        action="store_true",
        help="run no agents and expect every probe to be allowed, to see that nothing else denies",
    )
    _add_families(run, "the families of scenarios that name none")
    _add_mode(run)
    run.set_defaults(command=_guarded(_run))

    up = lab.add_parser("up", help="keep a cluster running, for kubectl and your own policies")
    up.add_argument("--nodes", type=_count, default=2, metavar="N", help="default: 2")
    _add_families(up, "the families that the cluster has addresses of")
    _add_mode(up)
    up.set_defaults(command=_guarded(_up))

    clean = lab.add_parser("clean", help="remove what crashed labs left; live ones go on")
    clean.set_defaults(command=_guarded(_clean))


def _add_families(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--families", choices=_FAMILIES, default="ipv4", help=f"{what} (default: ipv4)"
    )


def _add_mode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=["nft", "legacy"],
        default="nft",
        help="which iptables the agents use (default: nft)",
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="how the agents write their rules (default: auto)",
    )


def _enforcement(args: argparse.Namespace) -> Enforcement:
    from npc.lab.agents import Enforcement

    return Enforcement(args.backend, args.mode)


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 9")
    return int(text)


def _guarded(
    command: Callable[[argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """Errors of the lab are a message and an exit code; a signal ends it through its clean-up."""

    def guarded(args: argparse.Namespace) -> int:
        from npc.lab.agents import AgentError
        from npc.lab.located import ScenarioError
        from npc.lab.netns import LabError

        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        try:
            return command(args)
        except AgentError as error:
            print(f"npc lab: {error}", file=sys.stderr)
            return 1
        except (LabError, ScenarioError) as error:
            print(f"npc lab: {error}", file=sys.stderr)
            return UNUSABLE

    return guarded


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _demo(args: argparse.Namespace) -> int:
    from npc.lab.demo import demo

    return demo(_enforcement(args))


def _run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from npc.lab import report, runner, scenario
    from npc.lab.runs import Run

    families = _FAMILIES[args.families]
    scenarios = [found for path in args.scenarios for found in scenario.read(path, families)]
    enforcement: Enforcement | None = _enforcement(args)
    if args.control:
        scenarios, enforcement = [runner.control(found) for found in scenarios], None
    console = Console(highlight=False)
    results: list[runner.Result] = []
    started = time.monotonic()
    with Run() as run:
        for done, found in runner.run_all(run, scenarios, enforcement):
            results += found
            if args.json:
                for result in found:
                    print(report.as_json(result), flush=True)
            else:
                report.print_scenario(console, done, found, time.monotonic() - started)
            started = time.monotonic()
    wrong = sum(not result.as_expected for result in results)
    if not args.json:
        console.print(
            f"scenarios: {len(scenarios)}, probes: {len(results)}, not as expected: {wrong}"
            f" ({'no agents' if args.control else f'backend {args.backend}, mode {args.mode}'})"
        )
    return 1 if wrong else 0


def _up(args: argparse.Namespace) -> int:
    from npc.lab.demo import up

    return up(_enforcement(args), args.nodes, _FAMILIES[args.families])


def _clean(_args: argparse.Namespace) -> int:
    from npc.lab.runs import clean

    removed = clean()
    print(f"removed what {len(removed)} dead labs left" if removed else "nothing to remove")
    return 0
