"""What the API fills in when the author leaves it out. Each function changes the object that it is
given.

Go: the `SetDefaults_*` functions, and the `PrepareForCreate` of the strategies for `status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconciler.testing.objects import Object


def network_policy(obj: Object) -> None:
    """policyTypes: Ingress always, Egress if there are egress rules; protocol TCP; an empty
    podSelector.
    """
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or []:
            for port in rule.get("ports") or []:
                port.setdefault("protocol", "TCP")


def pod(obj: Object) -> None:
    """The defaults of a pod that tests and `kubectl` look at; phase Pending; podIP and podIPs
    agree.
    """
    spec = obj.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("securityContext", {})
    for group in ("containers", "initContainers"):
        for container in spec.get(group) or []:
            _container(container, host_network=spec.get("hostNetwork") is True)
    status = obj.setdefault("status", {})
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", "BestEffort")
    if status.get("podIP") and not status.get("podIPs"):
        status["podIPs"] = [{"ip": status["podIP"]}]
    elif status.get("podIPs") and not status.get("podIP"):
        status["podIP"] = status["podIPs"][0].get("ip", "")


def _container(container: Object, *, host_network: bool) -> None:
    image = container.get("image", "")
    tag = image.rpartition("/")[2].partition(":")[2]
    moving = tag in ("", "latest") and "@" not in image
    container.setdefault("imagePullPolicy", "Always" if moving else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
        if host_network and "containerPort" in port:
            port.setdefault("hostPort", port["containerPort"])


def namespace(obj: Object) -> None:
    """The label with the namespace's own name, the `kubernetes` finalizer, phase Active."""
    meta = obj["metadata"]
    if meta.get("name"):
        meta["labels"] = (meta.get("labels") or {}) | {"kubernetes.io/metadata.name": meta["name"]}
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj.setdefault("status", {}).setdefault("phase", "Active")


def node(obj: Object) -> None:
    """podCIDR and podCIDRs agree."""
    spec = obj.setdefault("spec", {})
    if spec.get("podCIDR") and not spec.get("podCIDRs"):
        spec["podCIDRs"] = [spec["podCIDR"]]


def lease(obj: Object) -> None:
    """An empty spec."""
    obj.setdefault("spec", {})
