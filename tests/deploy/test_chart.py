"""The Helm chart: rendered by Helm, checked against Kubernetes' schemas, and against the agent's settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakewarden.agent.settings import Settings
from lakewarden.agent.variables import ENV_PREFIX
from lakewarden.agent.watching.foreground import MEMORY_BYTES as WATCHER_BYTES
from tests.deploy.kubernetes import CHART, NEWEST, OLDEST, ROOT, ChartError, render, violations

MIB = 1024 * 1024
MINIMAL: dict[str, Any] = {"settings": {"bootstrap_servers": "kafka:9092", "tables": ["s3://lake/*"]}}
FULL: dict[str, Any] = {
    "settings": {
        "bootstrap_servers": "kafka:9096",
        "tables": ["s3://lake/a/*", "s3://lake/b/*"],
        "lock_root": "s3://lake/locks",
        "kafka_security_protocol": "SASL_SSL",
        "kafka_sasl_mechanism": "SCRAM-SHA-512",
        "kafka_sasl_username": "agents",
        "catalogs": {"prod": {"type": "rest", "uri": "https://c"}},
        "memory_mb": 3_000_000,
        "drift_seconds": 0.25,
        "strict_takeover": True,
    },
    "secretFiles": [
        {"setting": "kafka_sasl_password_file", "secretName": "kafka-user", "key": "password"},
        {"setting": "kafka_ssl_cafile", "secretName": "kafka-ca", "key": "ca.crt"},
    ],
    "envFromSecrets": ["store-credentials"],
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-central-1"}],
    "imagePullSecrets": [{"name": "registry"}],
    "agents": {
        "replicas": 3,
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"pool": "lake"},
        "tolerations": [{"key": "lake", "operator": "Exists"}],
        "priorityClassName": "high",
    },
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "kafka": {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [9096]},
        "monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "web": {
        "allowedHosts": ["lake.example.com"],
        "basePath": "/lakewarden",
        "clients": [{"podSelector": {}}],
    },
}
BARE: dict[str, Any] = {
    **MINIMAL,
    "agents": {"staticMembership": False, "spread": False},
    "serviceAccount": {"create": False},
    "podDisruptionBudget": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "web": {"enabled": False},
}
helm = pytest.mark.matrix
"""Helm takes minutes to build, once."""


def only(objects: list[dict[str, Any]], kind: str, component: str = "agent") -> dict[str, Any]:
    """The one object of this kind; of kinds that the web page has, too, that of the component."""
    label = "app.kubernetes.io/component"
    [found] = [
        each
        for each in objects
        if each["kind"] == kind and each["metadata"]["labels"].get(label, component) == component
    ]
    return found


def agent_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = only(objects, "StatefulSet")["spec"]["template"]
    return pod


def variables(objects: list[dict[str, Any]]) -> dict[str, str]:
    [container] = agent_of(objects)["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


@pytest.mark.unit
def test_the_charts_version_is_that_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert (chart["version"], chart["appVersion"]) == (project, project)


@pytest.mark.unit
def test_the_pods_run_as_the_images_user() -> None:
    """Kubernetes refuses a user that is only named, where it has to be another one than root."""
    image = (ROOT / "Dockerfile").read_text()
    [user] = set(
        re.findall(r"runAs(?:User|Group): (\d+)", (CHART / "templates" / "_helpers.tpl").read_text())
    )

    assert f"--uid {user} " in image
    assert f"USER {user}" in image


@pytest.mark.unit
def test_the_charts_settings_and_secret_files_are_settings_of_the_agent() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema: Mapping[str, Any] = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]
    files = schema["secretFiles"]["items"]["properties"]["setting"]["enum"]
    named = {*values["settings"], *schema["settings"]["properties"], *files}

    assert named <= set(Settings.model_fields)
    assert set(files) == {
        each
        for each in Settings.model_fields
        if each.startswith("kafka_") and each.endswith(("file", "keyfile", "certfile", "cafile"))
    }


@helm
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", [MINIMAL, FULL, BARE], ids=["minimal", "full", "bare"])
def test_what_the_chart_renders_conforms_to_kubernetes_schemas(
    values: dict[str, Any], version: str, tmp_path: Path
) -> None:
    assert violations(render(values, tmp_path, version), tmp_path, version) == ""


@helm
def test_the_schema_check_finds_an_unknown_field_and_a_wrong_type(tmp_path: Path) -> None:
    objects = render(MINIMAL, tmp_path)
    only(objects, "StatefulSet")["spec"]["replica"] = 2
    only(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] = [1]

    found = violations(objects, tmp_path)

    assert "StatefulSet prod-agent is invalid" in found
    assert "PodDisruptionBudget prod-agent is invalid" in found


@helm
def test_the_agent_accepts_the_variables_that_the_chart_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, maps, whole numbers and truth values arrive as they were written."""
    for each in FULL["secretFiles"]:
        (tmp_path / each["setting"]).mkdir()
    given = variables(render(FULL, tmp_path))
    for name, value in given.items():
        monkeypatch.setenv(name, value.replace("$(POD_NAME)", "prod-agent-0"))
    monkeypatch.delenv(f"{ENV_PREFIX}KAFKA_SASL_PASSWORD_FILE")
    monkeypatch.setenv(f"{ENV_PREFIX}KAFKA_SASL_PASSWORD", "x")
    monkeypatch.delenv(f"{ENV_PREFIX}KAFKA_SSL_CAFILE")

    settings = Settings.load()

    assert settings.tables == ("s3://lake/a/*", "s3://lake/b/*")
    assert (settings.memory_mb, settings.drift_seconds, settings.strict_takeover) == (3_000_000, 0.25, True)
    assert (settings.group_instance_id, settings.session_timeout_seconds) == ("prod-agent-0", 45.0)
    assert settings.http_listen == ":8437"
    assert settings.catalogs["prod"]["uri"].get_secret_value() == "https://c"


@helm
def test_each_secret_is_mounted_where_its_setting_points_to(tmp_path: Path) -> None:
    objects = render(FULL, tmp_path)
    [container] = agent_of(objects)["spec"]["containers"]
    volumes = {each["name"]: each["secret"] for each in agent_of(objects)["spec"]["volumes"]}
    mounted = {
        f"{each['mountPath']}/{item['path']}": volumes[each["name"]]["secretName"]
        for each in container["volumeMounts"]
        for item in volumes[each["name"]]["items"]
    }

    assert mounted == {
        variables(objects)[f"{ENV_PREFIX}{each['setting'].upper()}"]: each["secretName"]
        for each in FULL["secretFiles"]
    }
    assert container["envFrom"] == [{"secretRef": {"name": "store-credentials"}}]
    assert [each for each in objects if each["kind"] == "Secret"] == []


@helm
def test_each_agent_keeps_its_name_in_the_consumer_group_unless_told_otherwise(tmp_path: Path) -> None:
    instance = f"{ENV_PREFIX}GROUP_INSTANCE_ID"

    assert variables(render(MINIMAL, tmp_path))[instance] == "$(POD_NAME)"
    assert instance not in variables(render(BARE, tmp_path))


@helm
def test_services_monitors_and_policies_select_the_agents(tmp_path: Path) -> None:
    objects = render(FULL, tmp_path)
    labels = agent_of(objects)["metadata"]["labels"].items()
    service = only(objects, "Service")
    monitor = only(objects, "ServiceMonitor")["spec"]
    [container] = agent_of(objects)["spec"]["containers"]

    assert service["spec"]["selector"].items() <= labels
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["endpoints"]] == [
        each["name"] for each in service["spec"]["ports"]
    ]
    assert [each["relabelings"] for each in monitor["endpoints"]] == [
        [{"targetLabel": "job", "replacement": "lakewarden"}]
    ], "the alert rules and the dashboard name this job"
    assert only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert only(objects, "StatefulSet")["spec"]["serviceName"] == service["metadata"]["name"]
    assert {each["name"] for each in container["ports"]} == {"http"}


@helm
@pytest.mark.parametrize("values", [MINIMAL, FULL], ids=["minimal", "full"])
def test_the_page_has_neither_the_agents_account_nor_their_network(
    values: dict[str, Any], tmp_path: Path
) -> None:
    """A page without a login must not hold the role that writes locks, nor ask the node for one."""
    objects = render(values, tmp_path)
    pods = {"agent": agent_of(objects), "web": only(objects, "Deployment", "web")["spec"]["template"]}
    accounts = {each: only(objects, "ServiceAccount", each)["metadata"] for each in pods}
    policies = {each: only(objects, "NetworkPolicy", each)["spec"] for each in pods}

    for name, pod in pods.items():
        assert pod["spec"]["serviceAccountName"] == accounts[name]["name"]
        other = next(each for each in pods if each != name)
        selected = policies[name]["podSelector"]["matchLabels"].items()
        assert selected <= pod["metadata"]["labels"].items()
        assert not selected <= pods[other]["metadata"]["labels"].items()
    assert accounts["agent"].get("annotations") == values.get("serviceAccount", {}).get("annotations")
    assert "annotations" not in accounts["web"]
    assert policies["web"].get("ingress", []) == [
        {"from": each, "ports": [{"port": "web"}]} for each in [values.get("web", {}).get("clients")] if each
    ]
    egress = [str(rule) for rule in policies["agent"]["egress"]]
    assert [str(rule) for rule in policies["web"]["egress"]] == egress[:-1]
    identity = policies["agent"]["egress"][-1]
    assert {"ipBlock": {"cidr": "169.254.169.254/32"}} in identity["to"]
    assert identity["ports"] == [{"port": 80}, {"port": 988}]
    assert {"ports": [{"port": 443}]} in policies["agent"]["egress"], "AWS STS, and other exchanges of tokens"


@helm
@pytest.mark.parametrize(
    ("settings", "resources", "memory"),
    [
        ({}, {}, 1400 * MIB),
        ({"memory_mb": 3000}, {}, 3400 * MIB),
        ({"watch": ["s3://lake/a"]}, {}, 1400 * MIB + WATCHER_BYTES),
        ({"watch": "s3://lake/a"}, {"limits": {"memory": "3000Mi"}}, 3000 * MIB),
    ],
)
def test_the_memory_of_an_agent_has_room_for_its_watcher(
    settings: dict[str, Any], resources: dict[str, Any], memory: int, tmp_path: Path
) -> None:
    """Kubernetes ends all processes of a container that has no room."""
    values = {"settings": MINIMAL["settings"] | settings, "agents": {"resources": resources}}
    [container] = agent_of(render(values, tmp_path))["spec"]["containers"]

    assert int(container["resources"]["limits"]["memory"].removesuffix("Mi")) * MIB == memory
    assert container["resources"]["requests"]["cpu"] == "500m"


@helm
def test_the_page_is_probed_by_a_name_that_it_answers_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(FULL, tmp_path)
    deployment = only(objects, "Deployment", "web")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    for each in container["env"]:
        if each["name"].startswith(f"{ENV_PREFIX}WEB_"):
            monkeypatch.setenv(each["name"], each["value"])
    service = only(objects, "Service", "web")["spec"]

    settings = Settings.load()

    assert (settings.web_address, settings.web_base_path) == ((None, 8438), "/lakewarden")
    assert settings.web_allowed_hosts == ("lake.example.com",)
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] == "/lakewarden/static/page.css"
        assert asked["httpHeaders"] == [{"name": "Host", "value": "localhost:8438"}]
    assert service["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@helm
@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "/settings/bootstrap_servers"),
        ({"settings": {"bootstrap_servers": "k:9092", "tables": []}}, "/settings/tables"),
        ({**MINIMAL, "setings": {}}, "setings"),
        ({"settings": {**MINIMAL["settings"], "kafka_sasl_password": "secret"}}, "kafka_sasl_password"),
        ({"settings": {**MINIMAL["settings"], "group_instance_id": "a"}}, "group_instance_id"),
        (
            {**MINIMAL, "secretFiles": [{"setting": "lock_root", "secretName": "s", "key": "k"}]},
            "secretFiles",
        ),
    ],
)
def test_values_that_can_not_be_meant_are_refused(
    values: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ChartError, match=problem):
        render(values, tmp_path)
