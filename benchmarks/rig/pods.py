"""Pods as a cluster has them: of deployments, scheduled and running; about 3 KB of JSON each."""

from __future__ import annotations

from typing import Any

PER_NAMESPACE = 500
PER_NODE = 100
APPS = 40


def namespaces(pods: int) -> list[str]:
    """The names of the namespaces of so many pods."""
    return [f"team-{number}" for number in range(-(-pods // PER_NAMESPACE))]


def pod(number: int) -> dict[str, Any]:
    """The pod of that number. Its labels, addresses and node are its own."""
    app = f"app-{number % APPS}"
    name = f"{app}-7c9d8b6f5-{number:05x}"
    started = f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    ip = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    node = f"node-{number // PER_NODE}"
    host = f"192.168.{number // PER_NODE >> 8}.{number // PER_NODE & 255}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "generateName": f"{app}-7c9d8b6f5-",
            "namespace": f"team-{number // PER_NAMESPACE}",
            "labels": {
                "app.kubernetes.io/name": app,
                "app.kubernetes.io/instance": f"{app}-{number % 3}",
                "pod-template-hash": "7c9d8b6f5",
                "tier": "web" if number % 3 else "db",
            },
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "9102",
                "checksum/config": f"{number * 2654435761 % 2**32:064x}",
            },
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{app}-7c9d8b6f5",
                    "uid": f"5b0a6f3e-0000-4000-8000-{number % APPS:012x}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "nodeName": node,
            "serviceAccountName": app,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000},
            "containers": [_main(app), _SIDECAR],
            "volumes": [
                {"name": "config", "configMap": {"name": f"{app}-config", "defaultMode": 420}},
                {"name": "scratch", "emptyDir": {}},
            ],
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{trouble}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for trouble in ("not-ready", "unreachable")
            ],
        },
        "status": {
            "phase": "Running",
            "hostIP": host,
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "startTime": started,
            "qosClass": "Burstable",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": started}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": container,
                    "image": f"registry.example.com/{app}/{container}:1.27.3",
                    "imageID": f"registry.example.com/{container}@sha256:{number % APPS:064x}",
                    "containerID": f"containerd://{number:064x}",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": started}},
                }
                for container in ("main", "metrics")
            ],
        },
    }


def _main(app: str) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10}
    return {
        "name": "main",
        "image": f"registry.example.com/{app}/main:1.27.3",
        "imagePullPolicy": "IfNotPresent",
        "args": ["--listen=:8080", "--log-format=json"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "LOG_LEVEL", "value": "info"},
        ],
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"memory": "256Mi"},
        },
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/app", "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }


_SIDECAR = {
    "name": "metrics",
    "image": "registry.example.com/platform/metrics:0.15.0",
    "imagePullPolicy": "IfNotPresent",
    "ports": [{"name": "metrics", "containerPort": 9102, "protocol": "TCP"}],
    "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
}
