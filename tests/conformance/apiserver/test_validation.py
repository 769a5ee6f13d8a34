"""Which policies are refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.apiserver.client import (
    CONFIG_MAPS,
    PODS,
    POLICIES,
    Api,
    Object,
    config_map,
    pod,
    policy,
)

INVALID, REQUIRED = "FieldValueInvalid", "FieldValueRequired"
FORBIDDEN, UNSUPPORTED = "FieldValueForbidden", "FieldValueNotSupported"

NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    "'12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
PORT = "must be between 1 and 65535, inclusive"


def ports(*items: Object) -> Object:
    return {"ingress": [{"ports": list(items)}]}


def peers(*items: Object) -> Object:
    return {"egress": [{"to": list(items)}]}


def expression(key: str, operator: str, *values: str) -> Object:
    found: Object = {"key": key, "operator": operator}
    if values:
        found["values"] = list(values)
    return {"podSelector": {"matchExpressions": [found]}}


P = "spec.ingress[0].ports[0]"
E = "spec.egress[0].to[0]"
S = "spec.podSelector.matchExpressions[0]"

REFUSED: dict[str, tuple[Object, set[tuple[str, str, str]]]] = {
    "unknown protocol": (
        ports({"protocol": "ICMP", "port": 1}),
        {
            (
                UNSUPPORTED,
                f"{P}.protocol",
                'Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP"',
            )
        },
    ),
    "protocol in lower case": (
        ports({"protocol": "tcp"}),
        {
            (
                UNSUPPORTED,
                f"{P}.protocol",
                'Unsupported value: "tcp": supported values: "TCP", "UDP", "SCTP"',
            )
        },
    ),
    "port 0": (ports({"port": 0}), {(INVALID, f"{P}.port", f"Invalid value: 0: {PORT}")}),
    "port 65536": (
        ports({"port": 65536}),
        {(INVALID, f"{P}.port", f"Invalid value: 65536: {PORT}")},
    ),
    "endPort below port": (
        ports({"port": 80, "endPort": 79}),
        {
            (
                INVALID,
                f"{P}.endPort",
                "Invalid value: 80: must be greater than or equal to `port`",
            )
        },
    ),
    "endPort too large": (
        ports({"port": 80, "endPort": 70000}),
        {(INVALID, f"{P}.endPort", f"Invalid value: 70000: {PORT}")},
    ),
    "endPort with a named port": (
        ports({"port": "http", "endPort": 79}),
        {
            (
                INVALID,
                f"{P}.endPort",
                "Invalid value: 79: may not be specified when `port` is non-numeric",
            )
        },
    ),
    "endPort alone": (
        ports({"endPort": 79}),
        {
            (
                INVALID,
                f"{P}.endPort",
                "Invalid value: 79: may not be specified when `port` is not specified",
            )
        },
    ),
    "long port name": (
        ports({"port": "a-port-name-too-long"}),
        {
            (
                INVALID,
                f"{P}.port",
                'Invalid value: "a-port-name-too-long": must be no more than 15 characters',
            )
        },
    ),
    "bad port name": (
        ports({"port": "-80--"}),
        {
            (INVALID, f"{P}.port", f'Invalid value: "-80--": {why}')
            for why in (
                "must contain at least one letter (a-z)",
                "must not contain consecutive hyphens",
                "must not begin or end with a hyphen",
            )
        },
    ),
    "empty peer": (peers({}), {(REQUIRED, E, "Required value: must specify a peer")}),
    "ipBlock and selector": (
        peers({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
        {(FORBIDDEN, E, "Forbidden: may not specify both ipBlock and another peer")},
    ),
    "ipBlock without cidr": (
        peers({"ipBlock": {"except": ["10.0.0.0/8"]}}),
        {(REQUIRED, f"{E}.ipBlock.cidr", "Required value")},
    ),
    "bad cidr": (
        peers({"ipBlock": {"cidr": "10.0.0/8"}}),
        {(INVALID, f"{E}.ipBlock.cidr", f'Invalid value: "10.0.0/8": {CIDR}')},
    ),
    "address instead of cidr": (
        peers({"ipBlock": {"cidr": "10.0.0.1"}}),
        {(INVALID, f"{E}.ipBlock.cidr", f'Invalid value: "10.0.0.1": {CIDR}')},
    ),
    "prefix too long": (
        peers({"ipBlock": {"cidr": "10.0.0.0/33"}}),
        {(INVALID, f"{E}.ipBlock.cidr", f'Invalid value: "10.0.0.0/33": {CIDR}')},
    ),
    "host bits": (
        peers({"ipBlock": {"cidr": "10.1.2.3/8", "except": ["10.9.0.1/16"]}}),
        {
            (
                INVALID,
                f"{E}.ipBlock.{field}",
                f'Invalid value: "{value}": must not have bits set beyond the prefix length',
            )
            for field, value in (("cidr", "10.1.2.3/8"), ("except[0]", "10.9.0.1/16"))
        },
    ),
    "bad except": (
        peers({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["nonsense"]}}),
        {(INVALID, f"{E}.ipBlock.except[0]", f'Invalid value: "nonsense": {CIDR}')},
    ),
    "except outside": (
        peers({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/16"]}}),
        {
            (
                INVALID,
                f"{E}.ipBlock.except[1]",
                'Invalid value: "11.0.0.0/16": must be a strict subset of `cidr`',
            )
        },
    ),
    "except of the whole": (
        peers({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}),
        {
            (
                INVALID,
                f"{E}.ipBlock.except[0]",
                'Invalid value: "10.0.0.0/8": must be a strict subset of `cidr`',
            )
        },
    ),
    "except of the other family": (
        peers({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["2001:db8::/64"]}}),
        {
            (
                INVALID,
                f"{E}.ipBlock.except[0]",
                'Invalid value: "2001:db8::/64": must be a strict subset of `cidr`',
            )
        },
    ),
    "unknown policy type": (
        {"policyTypes": ["Inside"]},
        {
            (
                UNSUPPORTED,
                "spec.policyTypes[0]",
                'Unsupported value: "Inside": supported values: "Ingress", "Egress"',
            )
        },
    ),
    "bad operator": (
        expression("a", "Is", "b"),
        {(INVALID, f"{S}.operator", 'Invalid value: "Is": not a valid selector operator')},
    ),
    "In without values": (
        expression("a", "In"),
        {
            (
                REQUIRED,
                f"{S}.values",
                "Required value: must be specified when `operator` is 'In' or 'NotIn'",
            )
        },
    ),
    "Exists with values": (
        expression("a", "Exists", "b"),
        {
            (
                FORBIDDEN,
                f"{S}.values",
                "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )
        },
    ),
    "bad key in an expression": (
        expression("-a", "Exists"),
        {(INVALID, f"{S}.key", f'Invalid value: "-a": {NAME_PART}')},
    ),
    "bad value in an expression": (
        expression("a", "In", "b c"),
        {(INVALID, f"{S}.values[0]", f'Invalid value: "b c": {VALUE}')},
    ),
    "bad value in matchLabels": (
        peers({"namespaceSelector": {"matchLabels": {"a": "b c"}}}),
        {
            (
                INVALID,
                f"{E}.namespaceSelector.matchLabels",
                f'Invalid value: "b c": {VALUE}',
            )
        },
    ),
}


@pytest.mark.parametrize(("spec", "causes"), REFUSED.values(), ids=REFUSED)
def test_refused_policies(
    api: Api, ns: str, spec: Object, causes: set[tuple[str, str, str]]
) -> None:
    answer = api.call("POST", POLICIES.format(ns=ns), policy(**spec))
    assert answer.code == 422, answer.body
    assert answer.body["reason"] == "Invalid"
    assert answer.causes == causes
    assert answer.body["message"].startswith(
        'NetworkPolicy.networking.k8s.io "policy" is invalid: '
    )


@pytest.mark.parametrize(
    "spec",
    [
        peers({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"]}}),
        peers({"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}}),
        peers({"podSelector": {}, "namespaceSelector": {}}),
        ports({"port": 1, "endPort": 65535}, {"port": "http"}, {"protocol": "SCTP"}, {}),
        {"policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": []},
        expression("example.com/a", "NotIn", "b", ""),
    ],
    ids=["ipv4", "ipv6", "both selectors", "ports", "deny all", "empty value"],
)
def test_accepted_policies(api: Api, ns: str, spec: Object) -> None:
    api.create(POLICIES.format(ns=ns), policy(**spec))


def test_an_update_is_checked_too(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    api.create(path, policy())
    answer = api.patch(f"{path}/policy", {"spec": {"policyTypes": ["Inside"]}})
    assert answer.code == 422
    assert "policyTypes" not in api.get(f"{path}/policy").body["spec"] or (
        api.get(f"{path}/policy").body["spec"]["policyTypes"] == ["Ingress"]
    )


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"ingress": [{"ports": [{"port": [80]}]}]}, "ports.port"),
        ({"ingress": {}}, "ingress"),
        ({"podSelector": []}, "podSelector"),
        ({"ingress": [{"ports": [{"endPort": "80"}]}]}, "endPort"),
        ({"podSelector": {"matchLabels": {"a": 1}}}, "matchLabels"),
        ({"policyTypes": [True]}, "policyTypes"),
    ],
    ids=["list as port", "object as list", "list as object", "text as number", "label", "boolean"],
)
def test_wrong_types_are_bad_requests(api: Api, ns: str, value: Any, path: str) -> None:
    answer = api.call("POST", POLICIES.format(ns=ns), policy(**value))
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")
    assert (
        'NetworkPolicy in version "v1" cannot be handled as a NetworkPolicy'
        in (answer.body["message"])
    )


def test_unknown_fields(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    wanted = policy(ingress=[{"port": [{"port": 80}]}])
    strict = api.call("POST", path, wanted, fieldValidation="Strict")
    assert strict.code == 400
    assert strict.body["message"].endswith('unknown field "spec.ingress[0].port"')
    lax = api.create(path, wanted, fieldValidation="Ignore")
    assert lax.body["spec"]["ingress"] == [{}]


@pytest.mark.parametrize(
    ("meta", "field"),
    [
        ({"name": "Upper"}, "metadata.name"),
        ({"name": "under_score"}, "metadata.name"),
        ({"name": ""}, "metadata.name"),
        ({"labels": {"a/b/c": "x"}}, "metadata.labels"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels"),
        ({"labels": {"-": "x"}}, "metadata.labels"),
        ({"annotations": {"a b": "x"}}, "metadata.annotations"),
    ],
    ids=["upper", "underscore", "empty", "slashes", "long value", "bad key", "annotation"],
)
def test_metadata(api: Api, ns: str, meta: Object, field: str) -> None:
    wanted = config_map()
    wanted["metadata"] |= meta
    answer = api.call("POST", CONFIG_MAPS.format(ns=ns), wanted)
    assert answer.code == 422, answer.body
    assert {cause[1] for cause in answer.causes} == {field}


def test_namespace_names_are_labels(api: Api) -> None:
    wanted = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}}
    answer = api.call("POST", "/api/v1/namespaces", wanted)
    assert (answer.code, {cause[1] for cause in answer.causes}) == (422, {"metadata.name"})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image"),
        ({"containers": [{"image": "a"}]}, "spec.containers[0].name"),
        (
            {"containers": [{"name": "a", "image": "a", "ports": [{"containerPort": 0}]}]},
            "spec.containers[0].ports[0].containerPort",
        ),
        (
            {
                "containers": [
                    {
                        "name": "a",
                        "image": "a",
                        "ports": [{"containerPort": 1, "name": "Not-A-Name"}],
                    }
                ]
            },
            "spec.containers[0].ports[0].name",
        ),
        (
            {
                "containers": [
                    {
                        "name": "a",
                        "image": "a",
                        "ports": [{"containerPort": 1, "protocol": "ICMP"}],
                    }
                ]
            },
            "spec.containers[0].ports[0].protocol",
        ),
    ],
    ids=["no container", "no image", "no name", "port 0", "port name", "protocol"],
)
def test_pods(api: Api, ns: str, spec: Object, field: str) -> None:
    answer = api.call("POST", PODS.format(ns=ns), pod(**spec))
    assert answer.code == 422, answer.body
    assert field in {cause[1] for cause in answer.causes}
