#!/usr/bin/env python3
"""Checks deploy/helm/paceway and deploy/kubernetes, and packs the chart into target/package.

Helm's own engine lints the chart and renders it with several values; each manifest is compared with the JSON Schema of
Kubernetes, and each configuration in it is read by `paceway check --offline`. deploy/package/chart.sh starts this with the
Python packages of deploy/package/requirements.txt, which bring both.
"""

import os
import subprocess
import sys

import helm_python as helm
import kubernetes_validate
import yaml

CHART = "deploy/helm/paceway"
KUBERNETES = ["1.25.0", "1.30.0", "1.34.0"]
# Kinds that Kubernetes itself does not know: their schemas are not among its own.
OTHERS = {"ServiceMonitor"}

SECRETS = {"redis": {"existingSecret": "redis"}, "admin": {"existingSecret": "admin", "read": "token"}}
CASES = {
    "defaults": {},
    "one gateway": {"replicaCount": 1, "redis": {"url": ""}},
    "secrets": {
        **SECRETS,
        "env": [{"name": "VENDOR_KEY", "valueFrom": {"secretKeyRef": {"name": "vendor", "key": "key"}}}],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        "volumeMounts": [{"name": "tls", "mountPath": "/etc/paceway-tls", "readOnly": True}],
        "config": """
            store: { prefix: shop, on_failure: reject }
            upstream: "https://${VENDOR}"
            limiters: { shop: { rate: 3/s, key: "{header.x-shop}" } }
            routes: [{ suffix: "*", limiters: [shop], max_wait: 2s }]
        """,
    },
    "everything": {
        **SECRETS,
        "autoscaling": {"enabled": True, "minReplicas": 3},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {
            "enabled": True,
            "clients": [{"podSelector": {"matchLabels": {"calls": "vendor"}}}],
            "admin": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        },
        "image": {"digest": "sha256:" + 64 * "0"},
        "imagePullSecrets": [{"name": "registry"}],
        "podLabels": {"team": "edge"},
        "podAnnotations": {"note": "a note"},
        "service": {"type": "LoadBalancer", "annotations": {"note": "a note"}},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "edge", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ],
        "priorityClassName": "high",
        "fullnameOverride": "gate",
    },
}
# Values that must be refused, each with a word of the message.
REFUSED = {
    "a key of the chart": ({"config": "listen: 0.0.0.0:1"}, "config.listen"),
    "a configuration that is a list": ({"config": "- a"}, "config is no YAML mapping"),
    "a key that does not exist": ({"replicas": 2}, "replicas"),
    "several gateways without a store": ({"redis": {"url": ""}}, "redis.url"),
    "pages that need a token without one": ({"admin": {"read": "token"}}, "admin.existingSecret"),
}

failures = []


def fail(place, what):
    failures.append(f"{place}: {what}")


def validate(place, documents):
    """Compares manifests with the schemas of Kubernetes. Returns how many comparisons were made."""
    made = 0
    for document in documents:
        name = f"{place}: {document['kind']} {document['metadata']['name']}"
        if document["kind"] in OTHERS:
            continue
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(document, version, strict=True)
                made += 1
            except Exception as error:  # noqa: BLE001: the package raises several kinds
                fail(name, f"{version}: {error}")
    return made


def check_pod(place, documents):
    """Checks what Kubernetes' profile `restricted` asks for, and that the pod outlives its drain."""
    config = yaml.safe_load(next(d for d in documents if d["kind"] == "ConfigMap")["data"]["paceway.yaml"])
    pod = next(d for d in documents if d["kind"] == "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    outer, inner = pod["securityContext"], container["securityContext"]
    restricted = (
        outer["runAsNonRoot"]
        and outer["seccompProfile"] == {"type": "RuntimeDefault"}
        and not inner["allowPrivilegeEscalation"]
        and inner["capabilities"] == {"drop": ["ALL"]}
    )
    if not restricted:
        fail(place, "the pod does not meet the profile `restricted`")
    stop = sum(int(config[key].rstrip("s")) for key in ("shutdown_delay", "drain_timeout"))
    if pod["terminationGracePeriodSeconds"] <= stop:
        fail(place, f"the pod is killed before its drain of {stop} s ends")


def check_config(place, documents):
    """Reads the configuration as the gateway does."""
    text = next(d for d in documents if d["kind"] == "ConfigMap")["data"]["paceway.yaml"]
    paceway = os.environ["PACEWAY"]
    said = subprocess.run([paceway, "check", "--offline", "-"], input=text, text=True, capture_output=True, check=False)
    if said.returncode != 0 or said.stderr:
        fail(place, f"paceway check: {said.stdout}{said.stderr}\n{text}")


def main():
    for finding in helm.lint(CHART, strict=True).get("messages", []):
        # An icon is for catalogues of charts.
        if "icon is recommended" not in str(finding):
            fail("lint", finding)
    compared = 0
    with helm.Chart.load(CHART) as chart:
        for name, values in CASES.items():
            rendered = chart.render(values, name="edge", namespace="prod")
            texts = [text for file, text in rendered.items() if file.endswith(".yaml")]
            documents = [one for text in texts for one in yaml.safe_load_all(text) if one]
            for check in (check_pod, check_config):
                check(name, documents)
            compared += validate(name, documents)
            print(f"chart: {name}: {len(documents)} manifests")
        for name, (values, word) in REFUSED.items():
            try:
                chart.validate_schema(values)
                chart.render(values, name="edge")
                fail(name, "is not refused")
            except helm.HelmError as error:
                if word not in str(error):
                    fail(name, f"the message does not say {word}: {error}")
    with open("deploy/kubernetes/paceway.yaml", encoding="utf-8") as file:
        documents = list(yaml.safe_load_all(file))
    compared += validate("deploy/kubernetes", documents)
    print(f"chart: {compared} comparisons with the schemas of Kubernetes {', '.join(KUBERNETES)}")
    if failures:
        sys.exit("\n".join(failures))
    print(helm.package(CHART, destination=sys.argv[1]))


main()
