"""Create, read, update, delete: what the API stores, refuses and answers."""

from __future__ import annotations

import uuid

import pytest

from tests.conformance.apiserver.client import (
    CONFIG_MAPS,
    LEASES,
    PODS,
    POLICIES,
    Api,
    Object,
    config_map,
    pod,
    policy,
)


def test_created_objects_get_identity(api: Api, ns: str) -> None:
    made = api.create(POLICIES.format(ns=ns), policy()).body["metadata"]
    assert made["name"] == "policy"
    assert made["namespace"] == ns
    assert made["generation"] == 1
    assert str(uuid.UUID(made["uid"])) == made["uid"]
    assert made["creationTimestamp"].endswith("Z")
    assert int(made["resourceVersion"]) > 0


def test_what_a_client_may_not_set_is_ignored(api: Api, ns: str) -> None:
    wanted = policy()
    wanted["metadata"] |= {
        "uid": "mine",
        "generation": 7,
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
    }
    meta = api.create(POLICIES.format(ns=ns), wanted).meta
    assert meta["uid"] != "mine"
    assert meta["generation"] == 1
    assert not meta["creationTimestamp"].startswith("2001")
    assert "deletionTimestamp" not in meta


def test_type_may_be_left_to_the_url(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    made = api.create(path, {"metadata": {"name": "settings"}, "data": {"a": "1"}}).body
    assert (made["apiVersion"], made["kind"]) == ("v1", "ConfigMap")
    wrong = api.call("POST", path, {"kind": "Pod", "metadata": {"name": "x"}})
    assert (wrong.code, wrong.body["reason"]) == (400, "BadRequest")
    assert api.call("PUT", f"{path}/settings", {"metadata": {"name": "settings"}}).code == 200


def test_generate_name(api: Api, ns: str) -> None:
    wanted = config_map()
    wanted["metadata"] = {"generateName": "settings-"}
    name = api.create(CONFIG_MAPS.format(ns=ns), wanted).meta["name"]
    assert name.startswith("settings-")
    assert len(name) == len("settings-") + 5


def test_second_create_is_refused(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    api.create(path, policy())
    answer = api.call("POST", path, policy())
    assert answer.code == 409
    assert answer.body["reason"] == "AlreadyExists"
    assert answer.body["message"] == 'networkpolicies.networking.k8s.io "policy" already exists'


def test_namespace_must_exist(api: Api) -> None:
    answer = api.call("POST", PODS.format(ns="no-such-namespace"), pod())
    assert answer.code == 404
    assert answer.body["message"] == 'namespaces "no-such-namespace" not found'


def test_namespace_must_match_the_url(api: Api, ns: str) -> None:
    wanted = pod()
    wanted["metadata"]["namespace"] = "default"
    answer = api.call("POST", PODS.format(ns=ns), wanted)
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")
    assert answer.body["message"].startswith("the namespace of the provided object does not match")


def test_version_must_not_be_given_on_create(api: Api, ns: str) -> None:
    wanted = pod()
    wanted["metadata"]["resourceVersion"] = "1"
    answer = api.call("POST", PODS.format(ns=ns), wanted)
    assert answer.code == 500
    assert answer.body["message"] == "resourceVersion should not be set on objects to be created"


def test_absent_object(api: Api, ns: str) -> None:
    answer = api.get(f"{POLICIES.format(ns=ns)}/none")
    assert answer.code == 404
    assert answer.body["status"] == "Failure"
    assert answer.body["reason"] == "NotFound"
    assert answer.body["message"] == 'networkpolicies.networking.k8s.io "none" not found'
    wanted = {"name": "none", "group": "networking.k8s.io", "kind": "networkpolicies"}
    assert answer.body["details"] == wanted


def test_absent_resource(api: Api, ns: str) -> None:
    answer = api.get(f"/apis/networking.k8s.io/v1/namespaces/{ns}/nothings")
    assert answer.code == 404


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({}, ["Ingress"]),
        ({"ingress": [{}]}, ["Ingress"]),
        ({"egress": []}, ["Ingress"]),
        ({"egress": [{}]}, ["Ingress", "Egress"]),
        ({"policyTypes": ["Egress"]}, ["Egress"]),
    ],
    ids=["nothing", "ingress", "empty egress", "egress", "given"],
)
def test_default_policy_types(api: Api, ns: str, spec: Object, types: list[str]) -> None:
    assert api.create(POLICIES.format(ns=ns), policy(**spec)).body["spec"]["policyTypes"] == types


def test_default_protocols(api: Api, ns: str) -> None:
    made = api.create(POLICIES.format(ns=ns), policy(ingress=[{"ports": [{"port": 80}, {}]}])).body
    assert made["spec"]["ingress"][0]["ports"] == [
        {"protocol": "TCP", "port": 80},
        {"protocol": "TCP"},
    ]
    made = api.create(PODS.format(ns=ns), pod()).body
    ports = made["spec"]["containers"][0]["ports"]
    assert ports == [{"containerPort": 80, "protocol": "TCP"}]


def test_policy_without_spec(api: Api, ns: str) -> None:
    wanted = policy()
    del wanted["spec"]
    made = api.create(POLICIES.format(ns=ns), wanted).body
    assert made["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}


def test_default_pod(api: Api, ns: str) -> None:
    wanted = pod(hostNetwork=True)
    wanted["status"] = {"phase": "Running", "podIP": "10.0.0.1"}
    made = api.create(PODS.format(ns=ns), wanted).body
    assert made["status"]["phase"] == "Pending"
    assert "podIP" not in made["status"]
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["containers"][0]["ports"][0]["hostPort"] == 80
    assert made["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"


def test_default_namespace(api: Api, ns: str) -> None:
    made = api.get(f"/api/v1/namespaces/{ns}").body
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": ns}
    assert made["status"] == {"phase": "Active"}
    assert made["spec"] == {"finalizers": ["kubernetes"]}


def test_update(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    made = api.create(path, policy()).body
    made["spec"]["podSelector"] = {"matchLabels": {"app": "web"}}
    changed = api.call("PUT", f"{path}/policy", made)
    assert changed.code == 200
    assert changed.meta["generation"] == 2
    assert changed.meta["uid"] == made["metadata"]["uid"]
    assert changed.meta["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert changed.body["spec"]["podSelector"] == {"matchLabels": {"app": "web"}}


def test_labels_do_not_change_the_generation(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    made = api.create(path, policy()).body
    made["metadata"]["labels"] = {"a": "b"}
    changed = api.call("PUT", f"{path}/policy", made)
    assert changed.meta["generation"] == 1
    assert changed.meta["labels"] == {"a": "b"}


def test_unchanged_update_writes_nothing(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    made = api.create(path, policy()).body
    again = api.call("PUT", f"{path}/policy", made)
    assert again.meta["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_stale_update_is_refused(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    made = api.create(path, policy()).body
    api.patch(f"{path}/policy", {"metadata": {"labels": {"a": "b"}}})
    answer = api.call("PUT", f"{path}/policy", made)
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    assert answer.body["message"] == (
        'Operation cannot be fulfilled on networkpolicies.networking.k8s.io "policy": the object '
        "has been modified; please apply your changes to the latest version and try again"
    )


def test_update_without_version_is_unconditional(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    api.create(path, policy())
    answer = api.call("PUT", f"{path}/policy", policy(egress=[{}]))
    assert (answer.code, answer.meta["generation"]) == (200, 2)


def test_name_must_match_the_url(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    api.create(path, policy())
    answer = api.call("PUT", f"{path}/policy", policy("other"))
    assert answer.code == 400
    assert answer.body["message"] == (
        "the name of the object (other) does not match the name on the URL (policy)"
    )


def test_update_of_another_incarnation_is_refused(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    api.create(path, policy())
    wanted = policy()
    wanted["metadata"]["uid"] = str(uuid.uuid4())
    answer = api.call("PUT", f"{path}/policy", wanted)
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition" in answer.body["message"]


def test_status_and_spec_are_written_apart(api: Api, ns: str) -> None:
    path = PODS.format(ns=ns)
    made = api.create(path, pod()).body
    made["metadata"]["labels"]["x"] = "y"
    made["status"]["phase"] = "Running"
    main = api.call("PUT", f"{path}/web", made).body
    assert main["status"]["phase"] == "Pending"
    assert main["metadata"]["labels"]["x"] == "y"
    main["status"] |= {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}
    main["spec"]["containers"][0]["image"] = "registry.invalid/other:1"
    status = api.call("PUT", f"{path}/web/status", main).body
    assert status["status"]["phase"] == "Running"
    assert status["status"]["podIP"] == "10.1.2.3"
    assert status["spec"]["containers"][0]["image"] == "registry.invalid/app:1"
    assert api.get(f"{path}/web/status").body["status"]["podIPs"] == [{"ip": "10.1.2.3"}]


def test_pod_spec_is_fixed(api: Api, ns: str) -> None:
    path = PODS.format(ns=ns)
    made = api.create(path, pod()).body
    made["spec"]["containers"][0]["image"] = "registry.invalid/app:2"
    assert api.call("PUT", f"{path}/web", made).code == 200
    answer = api.patch(f"{path}/web", {"spec": {"hostNetwork": True}})
    assert answer.code == 422
    assert [cause[:2] for cause in answer.causes] == [("FieldValueForbidden", "spec")]


def test_delete(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    made = api.create(path, policy()).body
    gone = api.call("DELETE", f"{path}/policy")
    assert (gone.code, gone.body["kind"], gone.body["status"]) == (200, "Status", "Success")
    assert gone.body["details"] == {
        "name": "policy",
        "group": "networking.k8s.io",
        "kind": "networkpolicies",
        "uid": made["metadata"]["uid"],
    }
    assert api.get(f"{path}/policy").code == 404
    assert api.call("DELETE", f"{path}/policy").code == 404


def test_delete_with_preconditions(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    made = api.create(path, policy()).body["metadata"]
    other = {"preconditions": {"uid": str(uuid.uuid4())}}
    refused = api.call("DELETE", f"{path}/policy", other)
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    same = {"preconditions": {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}}
    assert api.call("DELETE", f"{path}/policy", same).code == 200


def test_finalizers_hold_an_object(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    wanted = config_map()
    wanted["metadata"]["finalizers"] = ["example.com/hold"]
    api.create(path, wanted)
    held = api.call("DELETE", f"{path}/settings")
    assert (held.code, held.body["kind"]) == (200, "ConfigMap")
    assert held.meta["deletionTimestamp"]
    more = api.patch(
        f"{path}/settings", {"metadata": {"finalizers": ["example.com/hold", "a.b/c"]}}
    )
    assert more.code == 422
    assert [cause[1] for cause in more.causes] == ["metadata.finalizers"]
    assert api.patch(f"{path}/settings", {"metadata": {"finalizers": None}}).code == 200
    assert api.get(f"{path}/settings").code == 404


def test_terminating_namespace_takes_nothing_new(api: Api, ns: str) -> None:
    wanted = config_map()
    wanted["metadata"]["finalizers"] = ["example.com/hold"]
    api.create(CONFIG_MAPS.format(ns=ns), wanted)
    gone = api.call("DELETE", f"/api/v1/namespaces/{ns}")
    assert (gone.code, gone.body["status"]["phase"]) == (200, "Terminating")
    refused = api.call("POST", PODS.format(ns=ns), pod())
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert refused.body["message"] == (
        f'pods "web" is forbidden: unable to create new content in namespace {ns} '
        "because it is being terminated"
    )


def test_permanent_namespaces(api: Api) -> None:
    answer = api.call("DELETE", "/api/v1/namespaces/default")
    assert answer.code == 403
    assert answer.body["message"] == (
        'namespaces "default" is forbidden: this namespace may not be deleted'
    )


def test_delete_collection(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    for name in ("a", "b"):
        api.create(path, config_map(name, {"kind": name}))
    assert api.call("DELETE", path, labelSelector="kind=a").code == 200
    assert [item["metadata"]["name"] for item in api.get(path).body["items"]] == ["b"]


def test_dry_run(api: Api, ns: str) -> None:
    path = POLICIES.format(ns=ns)
    made = api.create(path, policy(), dryRun="All")
    assert made.body["spec"]["policyTypes"] == ["Ingress"]
    assert api.get(f"{path}/policy").code == 404
    api.create(path, policy())
    assert api.call("DELETE", f"{path}/policy", dryRun="All").code == 200
    assert api.get(f"{path}/policy").code == 200


def test_immutable_config_map(api: Api, ns: str) -> None:
    path = CONFIG_MAPS.format(ns=ns)
    api.create(path, {**config_map(a="b"), "immutable": True})
    answer = api.patch(f"{path}/settings", {"data": {"a": "c"}})
    assert answer.code == 422
    field = "field is immutable when `immutable` is set"
    assert answer.causes == {("FieldValueForbidden", "data", f"Forbidden: {field}")}


def test_lease(api: Api, ns: str) -> None:
    path = LEASES.format(ns=ns)
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "leader"},
        "spec": {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "acquireTime": "2024-01-01T00:00:00.000000Z",
            "renewTime": "2024-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        },
    }
    made = api.create(path, lease).body
    assert made["spec"] == lease["spec"]
    stale = {**made, "spec": {**made["spec"], "holderIdentity": "b"}}
    made["spec"]["renewTime"] = "2024-01-01T00:00:10.000000Z"
    assert api.call("PUT", f"{path}/leader", made).code == 200
    assert api.call("PUT", f"{path}/leader", stale).code == 409
    refused = api.patch(f"{path}/leader", {"spec": {"leaseDurationSeconds": 0}})
    assert [cause[1] for cause in refused.causes] == ["spec.leaseDurationSeconds"]
