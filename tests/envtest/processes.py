"""A real kube-apiserver with its etcd, on loopback, for as long as a test run takes."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3

ADMIN = "admin-token"
NOBODY = "nobody-token"
GUEST = "guest-token"
"""Bearer tokens: of a cluster admin, of a user who may do nothing, and of one whom tests let in."""

_PR_SET_PDEATHSIG = 1
_READY_WITHIN = 60.0


@dataclass(frozen=True)
class RealServer:
    """Where the server is, and how to reach it."""

    url: str
    ca: Path
    directory: Path

    def kubeconfig(self, token: str = ADMIN) -> Path:
        """A kubeconfig file for the bearer of a token."""
        path = self.directory / f"{token}.kubeconfig"
        path.write_text(
            f"""\
apiVersion: v1
kind: Config
clusters:
- name: envtest
  cluster: {{server: "{self.url}", certificate-authority: "{self.ca}"}}
users:
- name: user
  user: {{token: "{token}"}}
contexts:
- name: envtest
  context: {{cluster: envtest, user: user}}
current-context: envtest
"""
        )
        return path


def find_binaries() -> Path | None:
    """The folder that holds kube-apiserver and etcd, looked for as the ecosystem does."""
    candidates = [os.environ.get("KUBEBUILDER_ASSETS"), "/usr/local/kubebuilder/bin"]
    for candidate in filter(None, candidates):
        if all((Path(candidate) / name).exists() for name in ("kube-apiserver", "etcd")):
            return Path(candidate)
    found = shutil.which("kube-apiserver")
    return Path(found).parent if found and shutil.which("etcd") else None


@contextmanager
def real_server(binaries: Path, directory: Path) -> Iterator[RealServer]:
    """Start etcd and kube-apiserver, wait until they are ready, and end them after.

    :raises RuntimeError: if the server does not become ready; its log's end is in the message
    """
    etcd_port, peer_port, port = _free_ports(3)
    tokens = directory / "tokens.csv"
    tokens.write_text(
        f'{ADMIN},admin,admin,"system:masters"\n{NOBODY},nobody,nobody\n{GUEST},guest,guest\n'
    )
    key = directory / "service-accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    etcd: list[Path | str] = [
        binaries / "etcd",
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
        f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        "--unsafe-no-fsync",
    ]
    apiserver: list[Path | str] = [
        binaries / "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={directory / 'certs'}",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC",
        f"--token-auth-file={tokens}",
        "--disable-admission-plugins=ServiceAccount",
    ]
    with ExitStack() as stack:
        stack.enter_context(_process(etcd, directory / "etcd.log"))
        log = directory / "kube-apiserver.log"
        process = stack.enter_context(_process(apiserver, log))
        server = RealServer(
            f"https://127.0.0.1:{port}", directory / "certs" / "apiserver.crt", directory
        )
        _wait_until_ready(server, process, log)
        yield server


@contextmanager
def _process(command: list[Path | str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child that also ends when this process is killed."""
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing but one system call
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _wait_until_ready(server: RealServer, process: subprocess.Popen[bytes], log: Path) -> None:
    pool = urllib3.PoolManager(cert_reqs="CERT_NONE")
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    deadline = time.monotonic() + _READY_WITHIN
    answer = "no answer"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            response = pool.request(
                "GET",
                f"{server.url}/readyz",
                headers={"Authorization": f"Bearer {ADMIN}"},
                retries=False,
            )
            answer = f"{response.status}"
            if response.status == 200:
                pool.clear()
                return
        except urllib3.exceptions.HTTPError as error:
            answer = str(error)
        time.sleep(0.05)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    raise RuntimeError(f"kube-apiserver is not ready: {answer}\n{tail}")
