"""What the command line refuses, and what it makes of the rest."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from npc import agent
from npc.agent import Options
from npc.cli import main
from npc.compile import DEFAULTS, Settings
from npc.ruleset import Denial, DenyAction

RUN = ["run", "--node-name", "n1"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options of every agent that would have been started."""
    found: list[Options] = []

    def run(options: Options) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr(agent, "run", run)
    monkeypatch.delenv("NODE_NAME", raising=False)
    return found


def test_by_default_nothing_is_exempt_held_logged_or_ended(started: list[Options]) -> None:
    assert main(RUN) == 0
    [options] = started
    assert options.settings == DEFAULTS
    assert not options.terminate_established
    assert not options.strict_startup
    assert (options.backend, options.iptables_mode, options.families) == ("auto", "auto", "auto")


def test_every_option_of_enforcement(started: list[Options]) -> None:
    words = "--deny-action drop --log-denied --exempt-cidr 192.0.2.1 --exempt-cidr fd00::/8"
    words += " --strict-startup --pod-cidr 10.0.1.0/24 --pod-cidr fd00:1::/64"
    assert main([*RUN, *words.split(), "--terminate-established"]) == 0
    assert started[0].terminate_established
    assert started[0].strict_startup
    assert started[0].settings == Settings(
        denial=Denial(DenyAction.DROP, log=True),
        exempt=(ipaddress.ip_network("192.0.2.1/32"), ipaddress.ip_network("fd00::/8")),
        guarded=(ipaddress.ip_network("10.0.1.0/24"), ipaddress.ip_network("fd00:1::/64")),
    )


@pytest.mark.parametrize("families", ["auto", "dual"])
def test_the_blocks_that_are_held_need_not_be_given(started: list[Options], families: str) -> None:
    assert main([*RUN, "--strict-startup", "--families", families]) == 0
    assert started[0].strict_startup
    assert started[0].settings == DEFAULTS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--pod-cidr 10.0.0.0/8", "--pod-cidr means nothing without --strict-startup"),
        (
            "--strict-startup --pod-cidr 10.0.0.0/8 --families dual",
            "--strict-startup needs a --pod-cidr of ipv6 too, or --families without it",
        ),
    ],
)
def test_options_that_do_not_go_together_are_exit_code_2(
    started: list[Options], capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert main([*RUN, *words.split()]) == 2
    assert f"npc run: {message}" in capsys.readouterr().err
    assert not started


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--deny-action ignore", "invalid choice: 'ignore' (choose from 'reject', 'drop')"),
        ("--backend magic", "invalid choice: 'magic'"),
        ("--families ipv5", "invalid choice: 'ipv5'"),
        ("--exempt-cidr here", "'here' does not appear to be an IPv4 or IPv6 network"),
        ("--exempt-cidr 10.0.0.1/8", "10.0.0.1/8 has host bits set"),
        ("--exempt-cidr 0.0.0.0/0", "'0.0.0.0/0' is every address there is"),
        ("--pod-cidr ::/0", "'::/0' is every address there is"),
        ("--exempt-cidr fe80::%eth0/64", "'fe80::%eth0/64' has a zone"),
        ("--sync-period soon", "'soon' is no duration above zero"),
        ("--health-address nowhere", "'nowhere' is not HOST:PORT"),
    ],
)
def test_a_value_that_makes_no_sense_is_exit_code_2(
    started: list[Options], capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    with pytest.raises(SystemExit) as error:
        main([*RUN, *words.split()])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
    assert not started


def test_without_a_node_there_is_nothing_to_enforce(
    started: list[Options], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run"]) == 2
    assert "--node-name or $NODE_NAME must name this node" in capsys.readouterr().err
    assert not started


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("NPC_LOG_LEVEL", "npc cannot use NPC_LOG_LEVEL=loud: write one of debug, info, "),
        ("NPC_LOG_FORMAT", "npc cannot use NPC_LOG_FORMAT=loud: write one of text, json"),
    ],
)
def test_a_variable_that_makes_no_sense_is_exit_code_2(
    started: list[Options],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    message: str,
) -> None:
    monkeypatch.setenv(variable, "loud")
    assert main(RUN) == 2
    assert message in capsys.readouterr().err
    assert not started


def test_an_empty_variable_is_as_good_as_none(
    started: list[Options], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPC_LOG_LEVEL", "")
    monkeypatch.setenv("NPC_LOG_FORMAT", "")
    assert main(RUN) == 0
    assert started


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"npc {version('fullsync')}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_the_start_is_exit_code_0(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Options) -> int:
        os.kill(os.getpid(), number)
        return 1

    def unhandled(*_: object) -> None:
        """So that a failure is not our end."""

    monkeypatch.setattr(agent, "run", run)
    before = signal.signal(number, unhandled)
    try:
        with pytest.raises(SystemExit) as error:
            main(RUN)
        assert signal.getsignal(number) == unhandled
    finally:
        signal.signal(number, before)
    assert error.value.code == 0


def test_sigterm_is_handled_before_the_program_is_loaded() -> None:
    """The first process of a container gets no signal that it does not handle."""
    program = """
import os, signal, sys

class Sender:
    def find_spec(self, name, *_):
        if name == "npc.cli":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Sender())
from npc.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert done.returncode == 128 + signal.SIGTERM
