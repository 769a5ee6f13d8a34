"""The lab as its users meet it: exit codes, messages, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npc.lab import netns
from npc.lab.runs import ROOT, Run
from tests.e2e.clusters import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.netns

LAB = [sys.executable, "-m", "npc", "lab"]

SCENARIO = """\
name: one way
cluster:
  namespaces: [{name: x}]
  pods:
    - {namespace: x, name: a}
    - {namespace: x, name: b, labels: {app: b}}
steps:
  - name: b is closed
    apply:
      - kind: NetworkPolicy
        metadata: {name: p, namespace: x}
        spec: {podSelector: {matchLabels: {app: b}}}
    probes:
      - {from: x/a, to: x/b, port: 80, expect: deny}
      - {from: x/b, to: x/a, port: 80, protocol: UDP, expect: allow}
"""


def lab(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``npc lab`` to its end."""
    command = [*LAB, *map(str, arguments)]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@contextmanager
def lab_up(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A lab that runs until it is told to end, and its run."""
    process = subprocess.Popen(
        [*LAB, "up", "--nodes", "1", "--families", "dual", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "KUBECONFIG=" in line:
                yield process, line.strip().split("/")[-2]
                break
        else:
            pytest.fail("the lab did not come up")
    finally:
        process.kill()
        process.communicate()


def agents_of(run: str) -> list[int]:
    return [pid for name in netns.existing(f"npc-{run}-node") for pid in netns.processes(name)]


def left_of(run: str) -> list[str]:
    return [*netns.existing(f"npc-{run}-"), *(p.name for p in ROOT.glob(run))]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "one-way.yaml"
    path.write_text(SCENARIO)
    return path


def test_all_as_expected_is_exit_code_0(scenario: Path) -> None:
    done = lab("run", scenario)
    assert (done.returncode, done.stderr) == (0, "")
    assert "one way" in done.stdout
    assert "scenarios: 1, probes: 2, not as expected: 0" in done.stdout


def test_a_mismatch_is_exit_code_1_and_named_with_its_line(scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("expect: deny", "expect: allow"))
    done = lab("run", scenario)
    assert done.returncode == 1
    assert f"{scenario}:14: b is closed: x/a -> x/b TCP/80 ipv4" in done.stdout
    assert "expected allow, got deny" in done.stdout


def test_the_control_enforces_nothing_and_expects_that(scenario: Path) -> None:
    done = lab("run", "--control", scenario)
    assert (done.returncode, done.stderr) == (0, "")
    assert "scenarios: 1, probes: 2, not as expected: 0 (no agents)" in done.stdout


def test_json_is_one_object_for_each_probe(scenario: Path) -> None:
    done = lab("run", "--json", "--mode", "legacy", scenario)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first.pop("milliseconds") >= 0
    assert first == {
        "scenario": "one way",
        "step": "b is closed",
        "from": "x/a",
        "to": "x/b",
        "port": 80,
        "protocol": "TCP",
        "family": "ipv4",
        "expect": "deny",
        "got": "deny",
    }
    assert (second["protocol"], second["got"]) == ("UDP", "allow")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("port: 80", "port: eighty", ":14: port: 'eighty' is not a number from 1 to 65535"),
        ("app: b}}}\n", "app: [}}}\n", ":12: "),
        ("podSelector", "podSelektor", ":10: cannot apply NetworkPolicy x/p: "),
    ],
    ids=["field", "yaml", "refused by the API"],
)
def test_an_unusable_scenario_is_exit_code_2_and_named_with_its_line(
    scenario: Path, old: str, new: str, message: str
) -> None:
    scenario.write_text(SCENARIO.replace(old, new, 1))
    done = lab("run", scenario)
    assert done.returncode == 2
    assert f"npc lab: {scenario}{message}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_tool_is_exit_code_2_and_named(scenario: Path, tmp_path: Path) -> None:
    done = lab("run", scenario, PATH=str(tmp_path))
    assert done.returncode == 2
    assert "iptables-nft-restore (Debian's package iptables)" in done.stderr


def test_the_demo_shows_what_each_policy_changed() -> None:
    done = lab("demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert "kind: NetworkPolicy" in done.stdout
    assert "In force on every node" in done.stdout
    assert "[✗]" in done.stdout
    assert "[✓]" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_nothing_is_left(number: signal.Signals) -> None:
    with lab_up() as (process, run):
        assert agents_of(run)
        process.send_signal(number)
        process.wait(30)
        assert left_of(run) == []


def test_clean_removes_what_a_killed_lab_left_and_nothing_of_a_live_one() -> None:
    with lab_up() as (process, run), Run() as other:
        netns.create([f"{other.prefix}live"], {})
        agents = agents_of(run)
        assert agents
        process.kill()
        process.wait()
        # The agents do not outlive it, even so.
        wait_until(lambda: agents_of(run) == [])
        assert left_of(run)
        done = lab("clean")
        assert done.returncode == 0, done.stderr
        assert left_of(run) == []
        assert left_of(other.id) == [f"{other.prefix}live", other.id]
    assert left_of(other.id) == []


def test_kubectl_drives_a_lab_that_is_up() -> None:
    with lab_up() as (process, run):
        env = os.environ | {"KUBECONFIG": str(ROOT / run / "kubeconfig")}
        kubectl = str(Path(sys.executable).with_name("kubectl"))

        def call(*arguments: str) -> None:
            subprocess.run([kubectl, *arguments], env=env, check=True, capture_output=True)

        call("run", "extra", "-n", "guest", "--image", "any")
        call("wait", "-n", "guest", "pod/extra", "--for=condition=Ready", "--timeout=20s")
        assert netns.existing(f"npc-{run}-guest.extra")
        call("delete", "pod", "-n", "guest", "extra")
        wait_until(lambda: not netns.existing(f"npc-{run}-guest.extra"))
        assert process.poll() is None


@pytest.mark.parametrize(
    "options",
    [("--backend", "restore", "--mode", "nft"), ("--mode", "legacy"), ("--backend", "nftables")],
)
def test_what_a_lab_says_one_may_type_shows_its_rules_and_reaches_a_pod(
    options: tuple[str, ...],
) -> None:
    with lab_up(*options) as (process, _):
        assert process.stdout is not None
        said = iter(process.stdout)
        shell = next(line for line in said if "a shell inside a pod" in line).partition("#")[0]
        there_and_back, rules = next(said), next(said)
        answers = [
            subprocess.run(
                ["bash", "-c", command], input=typed, capture_output=True, text=True, check=True
            ).stdout
            for command, typed in ((shell, there_and_back), (rules, ""))
        ]
    assert answers[0] == "hello\n"
    assert "NPC" in answers[1] or "table inet npc" in answers[1]
