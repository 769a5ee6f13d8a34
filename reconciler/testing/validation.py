"""Which objects the API refuses, field by field, in the words of the real one.

A validator takes the new object and, on update, the old one; it returns every complaint. Types have
been checked before (`reconciler.testing.schema`), defaults are set (`reconciler.testing.defaults`).
What is checked are the mistakes that people make in policies and in the objects that policies
select; it is no replica of all of Kubernetes' rules.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Any, Final

from reconciler.testing.errors import (
    FieldError,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from reconciler.testing.names import (
    Network,
    check,
    cidr_block,
    dns_label,
    dns_subdomain,
    host_bits,
    is_address,
    label_value,
    parse_cidr,
    port_name,
    port_number,
    qualified_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reconciler.testing.objects import Object

PROTOCOLS: Final = ("TCP", "UDP", "SCTP")


# --- every object


def metadata(
    obj: Object, *, namespaced: bool, name_rule: Callable[[str], list[str]]
) -> list[FieldError]:
    """Complaints about `metadata`. Go: `ValidateObjectMeta`."""
    meta = obj["metadata"]
    errors = []
    name = meta.get("name", "")
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    else:
        errors += check("metadata.name", name, name_rule)
    namespace = meta.get("namespace", "")
    if namespaced and not namespace:
        errors.append(required("metadata.namespace"))
    elif namespaced:
        errors += check("metadata.namespace", namespace, dns_label)
    elif namespace:
        errors.append(forbidden_field("metadata.namespace", "not allowed on this type"))
    errors += labels(meta.get("labels") or {}, "metadata.labels")
    for key in meta.get("annotations") or {}:
        errors += check("metadata.annotations", key, lambda value: qualified_name(value.lower()))
    for finalizer in meta.get("finalizers") or []:
        errors += check("metadata.finalizers", finalizer, qualified_name)
    for at, owner in enumerate(meta.get("ownerReferences") or []):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                path = f"metadata.ownerReferences[{at}].{field}"
                errors.append(invalid_value(path, "", "must not be empty"))
    return errors


def labels(found: dict[str, str], path: str) -> list[FieldError]:
    """Go: `ValidateLabels`."""
    errors = []
    for key, value in found.items():
        errors += check(path, key, qualified_name)
        errors += check(path, value, label_value)
    return errors


def unchanged(path: str, new: Any, old: Any) -> list[FieldError]:
    """A complaint if an immutable field differs. Go: `ValidateImmutableField`."""
    return [] if new == old else [invalid_value(path, new, "field is immutable")]


# --- NetworkPolicy


def network_policy(obj: Object, old: Object | None) -> list[FieldError]:
    """Go: `ValidateNetworkPolicySpec`, `ValidateNetworkPolicyUpdate`."""
    # What an older server has let in may stay through an update.
    kept = frozenset(_cidrs(old)) if old is not None else frozenset[str]()
    spec = obj["spec"]
    errors = label_selector(spec["podSelector"], "spec.podSelector")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for at, rule in enumerate(spec.get(direction) or []):
            path = f"spec.{direction}[{at}]"
            for index, port in enumerate(rule.get("ports") or []):
                errors += _policy_port(port, f"{path}.ports[{index}]")
            for index, peer in enumerate(rule.get(peers) or []):
                errors += _policy_peer(peer, f"{path}.{peers}[{index}]", kept)
    types = spec.get("policyTypes") or []
    if len(types) > 2:
        errors.append(
            invalid_value("spec.policyTypes", types, "may not specify more than two policyTypes")
        )
        return errors
    errors += [
        not_supported(f"spec.policyTypes[{at}]", kind, ("Ingress", "Egress"))
        for at, kind in enumerate(types)
        if kind not in ("Ingress", "Egress")
    ]
    return errors


def _policy_port(port: Object, path: str) -> list[FieldError]:
    errors = []
    protocol, number, end = port.get("protocol"), port.get("port"), port.get("endPort")
    if protocol is not None and protocol not in PROTOCOLS:
        errors.append(not_supported(f"{path}.protocol", protocol, PROTOCOLS))
    if isinstance(number, int):
        errors += check(f"{path}.port", number, port_number)
        if end is not None:
            if end < number:
                why = "must be greater than or equal to `port`"
                errors.append(invalid_value(f"{path}.endPort", number, why))
            errors += check(f"{path}.endPort", end, port_number)
    elif isinstance(number, str):
        if end is not None:
            why = "may not be specified when `port` is non-numeric"
            errors.append(invalid_value(f"{path}.endPort", end, why))
        errors += check(f"{path}.port", number, port_name)
    elif end is not None:
        why = "may not be specified when `port` is not specified"
        errors.append(invalid_value(f"{path}.endPort", end, why))
    return errors


def _policy_peer(peer: Object, path: str, kept: frozenset[str]) -> list[FieldError]:
    errors = []
    if not peer:
        return [required(path, "must specify a peer")]
    for field in ("podSelector", "namespaceSelector"):
        if field in peer:
            errors += label_selector(peer[field], f"{path}.{field}")
    if "ipBlock" in peer:
        errors += _ip_block(peer["ipBlock"], f"{path}.ipBlock", kept)
        if len(peer) > 1:
            errors.append(forbidden_field(path, "may not specify both ipBlock and another peer"))
    return errors


def _cidrs(policy: Object) -> Iterator[str]:
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for rule in policy["spec"].get(direction) or []:
            for peer in rule.get(peers) or []:
                block = peer.get("ipBlock") or {}
                yield from (block.get("cidr", ""), *(block.get("except") or []))


def _cidr(value: str, path: str, kept: frozenset[str]) -> list[FieldError]:
    errors = check(path, value, cidr_block)
    if not errors and value not in kept:
        errors = [replace(error, recent=True) for error in check(path, value, host_bits)]
    return errors


def _ip_block(block: Object, path: str, kept: frozenset[str]) -> list[FieldError]:
    cidr = block.get("cidr", "")
    if not cidr:
        return [required(f"{path}.cidr")]
    errors = _cidr(cidr, f"{path}.cidr", kept)
    network = parse_cidr(cidr)
    for at, value in enumerate(block.get("except") or []):
        field = f"{path}.except[{at}]"
        errors += _cidr(value, field, kept)
        hole = parse_cidr(value)
        if network and hole and (hole == network or not _within(hole, network)):
            errors.append(invalid_value(field, value, "must be a strict subset of `cidr`"))
    return errors


def _within(hole: Network, network: Network) -> bool:
    if isinstance(hole, IPv4Network) and isinstance(network, IPv4Network):
        return hole.subnet_of(network)
    if isinstance(hole, IPv6Network) and isinstance(network, IPv6Network):
        return hole.subnet_of(network)
    return False


def label_selector(selector: Object, path: str) -> list[FieldError]:
    """Go: `ValidateLabelSelector`."""
    errors = labels(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for at, expression in enumerate(selector.get("matchExpressions") or []):
        where = f"{path}.matchExpressions[{at}]"
        operator = expression.get("operator", "")
        values = expression.get("values") or []
        if operator in ("In", "NotIn"):
            if not values:
                why = "must be specified when `operator` is 'In' or 'NotIn'"
                errors.append(required(f"{where}.values", why))
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                errors.append(forbidden_field(f"{where}.values", why))
        else:
            errors.append(
                invalid_value(f"{where}.operator", operator, "not a valid selector operator")
            )
        errors += check(f"{where}.key", expression.get("key", ""), qualified_name)
        for index, value in enumerate(values):
            errors += check(f"{where}.values[{index}]", value, label_value)
    return errors


# --- Pod

_MUTABLE_POD_FIELDS: Final = (
    "activeDeadlineSeconds",
    "tolerations",
    "terminationGracePeriodSeconds",
)


def pod(obj: Object, old: Object | None) -> list[FieldError]:
    """The parts of `ValidatePod` and `ValidatePodUpdate` that matter to networking."""
    spec = obj["spec"]
    errors: list[FieldError] = []
    containers = spec.get("containers") or []
    if not containers:
        errors.append(required("spec.containers"))
    for at, container in enumerate(containers):
        errors += _container(container, f"spec.containers[{at}]")
    for at, entry in enumerate((obj.get("status") or {}).get("podIPs") or []):
        if not is_address(entry.get("ip", "")):
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            errors.append(invalid_value(f"status.podIPs[{at}]", entry.get("ip", ""), why))
    if old is not None and _fixed_part(spec) != _fixed_part(old["spec"]):
        errors.append(
            forbidden_field(
                "spec",
                "pod updates may not change fields other than `spec.containers[*].image`,"
                "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` "
                "(only additions to existing tolerations),`spec.terminationGracePeriodSeconds` "
                "(allow it to be set to 1 if it was previously negative)",
            )
        )
    return errors


def _container(container: Object, path: str) -> list[FieldError]:
    errors = []
    name = container.get("name", "")
    errors += check(f"{path}.name", name, dns_label) if name else [required(f"{path}.name")]
    if not container.get("image"):
        errors.append(required(f"{path}.image"))
    for at, port in enumerate(container.get("ports") or []):
        where = f"{path}.ports[{at}]"
        if "containerPort" not in port:
            errors.append(required(f"{where}.containerPort"))
        else:
            errors += check(f"{where}.containerPort", port["containerPort"], port_number)
        if port.get("name"):
            errors += check(f"{where}.name", port["name"], port_name)
        if port.get("protocol") not in PROTOCOLS:
            errors.append(not_supported(f"{where}.protocol", port.get("protocol", ""), PROTOCOLS))
    return errors


def _fixed_part(spec: Object) -> Object:
    fixed = {key: value for key, value in spec.items() if key not in _MUTABLE_POD_FIELDS}
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [
                {
                    key: value
                    for key, value in container.items()
                    if key not in ("image", "imagePullPolicy")
                }
                for container in fixed[group]
            ]
    return fixed


# --- ConfigMap, Lease


def config_map(obj: Object, old: Object | None) -> list[FieldError]:
    """Go: `ValidateConfigMap`, `ValidateConfigMapUpdate`."""
    errors = []
    if old is not None and old.get("immutable"):
        if not obj.get("immutable"):
            errors.append(
                forbidden_field("immutable", "field is immutable when `immutable` is set")
            )
        for part in ("data", "binaryData"):
            if (obj.get(part) or {}) != (old.get(part) or {}):
                why = "field is immutable when `immutable` is set"
                errors.append(forbidden_field(part, why))
    return errors


def lease(obj: Object, _old: Object | None) -> list[FieldError]:
    """Go: `ValidateLeaseSpec`."""
    spec = obj.get("spec") or {}
    errors = []
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        errors.append(
            invalid_value("spec.leaseDurationSeconds", duration, "must be greater than 0")
        )
    if transitions is not None and transitions < 0:
        why = "must be greater than or equal to 0"
        errors.append(invalid_value("spec.leaseTransitions", transitions, why))
    return errors


NAME_RULES: Final[dict[str, Callable[[str], list[str]]]] = {"namespaces": dns_label}
"""Plural to rule; every other resource takes a DNS subdomain."""


def name_rule(plural: str) -> Callable[[str], list[str]]:
    """How objects of this resource may be called."""
    return NAME_RULES.get(plural, dns_subdomain)
