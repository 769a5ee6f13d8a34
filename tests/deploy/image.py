"""Builds an image as a folder: a Dockerfile's instructions, carried out in chroots of bare Debian.

Knows the instructions that ours uses, and refuses any other. ``debootstrap`` makes what the base
image holds. Of this machine it takes what says how packages are reached: apt's configuration,
the certificates to trust, and pip's environment.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"

# Where the builder shows this machine's certificates to the stages; gone from the result.
_CERTIFICATES = Path("run/builder-certificates.crt")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT")


@dataclass(frozen=True)
class Instruction:
    """``words`` is the rest of the line, with continuation lines joined."""

    name: str
    words: str

    @property
    def pairs(self) -> dict[str, str]:
        """``KEY=VALUE ...``, of ENV, ARG and LABEL; an ARG's value may be missing."""
        found = (word.partition("=") for word in shlex.split(self.words))
        return {key: value for key, _, value in found}


@dataclass
class Stage:
    """One stage; what its ENV says is known after it was built."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def every(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.name == name]


def parse(dockerfile: Path) -> list[Stage]:
    """The stages, in order; a stage's base with the file's arguments put in.

    :raises ValueError: if an instruction stands where none may
    """
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for instruction in _instructions(dockerfile.read_text()):
        if instruction.name == "FROM":
            base, _, name = instruction.words.partition(" AS ")
            stages.append(Stage(name or "final", _substitute(base, arguments)))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.name == "ARG":
            arguments |= instruction.pairs
        else:
            raise ValueError(f"{instruction.name} before FROM")
    return stages


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, words = line.strip().partition(" ")
            yield Instruction(name, " ".join(words.split()))


def build(stages: list[Stage], context: Path, directory: Path) -> Path:
    """Carry out every stage; the last one's folder."""
    base = _base(stages[0].base, directory)
    built: dict[str, Path] = {}
    for stage in stages:
        assert stage.base == stages[0].base, "the stages stand on different bases"
        root = built[stage.name] = directory / stage.name
        subprocess.run(["cp", "--archive", base, root], check=True)
        _Builder(stage, root, context, built).run()
    return built[stages[-1].name]


def _base(image: str, directory: Path) -> Path:
    """What ``debian:SUITE-slim`` holds, made by debootstrap."""
    match = re.fullmatch(r"debian:(\w+)-slim", image)
    assert match, f"no Debian suite: {image}"
    root = directory / "base"
    command = ["debootstrap", "--variant=minbase", match[1], str(root), MIRROR]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    apt = Path("/etc/apt/apt.conf.d")
    for file in apt.glob("*proxy*") if apt.exists() else ():
        shutil.copy(file, root / "etc/apt/apt.conf.d")
    return root


class _Builder:
    def __init__(self, stage: Stage, root: Path, context: Path, built: dict[str, Path]) -> None:
        self._stage = stage
        self._root = root
        self._context = context
        self._built = built
        self._arguments: dict[str, str] = {}

    def run(self) -> None:
        trusted = os.environ.get("PIP_CERT") or ssl.get_default_verify_paths().cafile
        certificates = self._root / _CERTIFICATES
        if trusted:
            shutil.copy(trusted, certificates)
        for instruction in self._stage.instructions:
            getattr(self, f"_{instruction.name.lower()}")(instruction)
        certificates.unlink(missing_ok=True)

    def _arg(self, instruction: Instruction) -> None:
        self._arguments |= instruction.pairs

    def _env(self, instruction: Instruction) -> None:
        self._stage.environment |= instruction.pairs

    def _label(self, _: Instruction) -> None:
        """Of no consequence for the files."""

    _user = _entrypoint = _label

    def _run(self, instruction: Instruction) -> None:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        environment |= self._stage.environment | self._arguments
        environment |= {n: os.environ[n] for n in (*_PROXIES, *_PIP) if n in os.environ}
        if (self._root / _CERTIFICATES).exists():
            environment["PIP_CERT"] = f"/{_CERTIFICATES}"
        done = subprocess.run(
            in_chroot(self._root, ["/bin/sh", "-c", instruction.words]),
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, f"RUN {instruction.words}:\n{done.stdout}\n{done.stderr}"

    def _copy(self, instruction: Instruction) -> None:
        *names, target = shlex.split(instruction.words)
        origin, ignored = self._context, ["__pycache__"]
        if names[0].startswith("--from="):
            origin, ignored = self._built[names.pop(0).removeprefix("--from=")], []
        place = self._root / target.lstrip("/")
        for name in names:
            source = origin / name.lstrip("/")
            if source.is_dir():
                ignore = shutil.ignore_patterns(*ignored)
                shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True, ignore=ignore)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, place)


def in_chroot(root: Path, command: list[str]) -> list[str]:
    """A command that becomes ``command`` below ``root``, in mounts of its own that end with it."""
    return _in_mounts(root, command, [])


def in_container(root: Path, command: list[str], *shown: Path) -> list[str]:
    """The same as a container with a read-only root.

    Only /tmp can be written, and the file /run/xtables.lock. ``shown`` are folders of this machine
    that it sees at their own paths.
    """
    lines = [f"touch {root}/tmp/lock {root}/run/xtables.lock"]
    lines.append(f"mount --bind {root}/tmp/lock {root}/run/xtables.lock")
    for folder in shown:
        lines.append(f"mkdir -p {root}{folder}")
        lines.append(f"mount --bind -o ro {folder} {root}{folder}")
    lines.append(f"mount -o remount,bind,ro {root}")
    return _in_mounts(root, command, lines)


def _in_mounts(root: Path, command: list[str], more: list[str]) -> list[str]:
    lines = [
        "mount --make-rprivate /",
        f"mount --bind {root} {root}",
        f"mount -t proc proc {root}/proc",
        f"mount --rbind /dev {root}/dev",
        f"touch {root}/etc/resolv.conf",
        f"mount --bind /etc/resolv.conf {root}/etc/resolv.conf",
        f"mount -t tmpfs tmpfs {root}/tmp",
    ]
    lines += [*more, f'exec chroot {root} "$@"']
    return ["unshare", "--mount", "sh", "-ec", "\n".join(lines), "sh", *command]


def _substitute(text: str, arguments: dict[str, str]) -> str:
    for name, value in arguments.items():
        text = text.replace(f"${{{name}}}", value)
    return text
