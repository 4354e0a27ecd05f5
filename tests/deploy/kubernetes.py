"""Renders the Helm chart, and checks what it renders against Kubernetes' schemas.

- Helm and kubeconform are built by Go into the cache, at pinned versions (Helm: about 3 minutes of a core, once).
- The schemas come from the wheel of `kubernetes-validate` on PyPI, which has those of each Kubernetes release. Their references
  name addresses on the web, so they are copied with references to the file beside them. The Prometheus operator's are not
  there: a ServiceMonitor isn't checked against a schema.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.servers.program import NoServerError, built_by_go, cache, from_wheel, one_at_a_time

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "lakewarden"
HELM = ("helm", "helm.sh/helm/v3/cmd/helm", "v3.19.0")
KUBECONFORM = ("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform", "v0.7.0")
SCHEMAS_WHEEL = "kubernetes-validate==1.37.0"
OLDEST, NEWEST = "1.27.0", "1.37.0"
UNCHECKED = ("ServiceMonitor",)
SECONDS = 120


class ChartError(Exception):
    """Helm refuses the chart or its values. The message is Helm's."""


def program(name: str, module: str, version: str) -> Path:
    """The program, built where it isn't yet."""
    tried: list[str] = []
    found = built_by_go(name, module, version, tried)
    if found is None:
        raise NoServerError(f"no {name}: {'; '.join(tried)}")
    return found


def render(values: Mapping[str, Any], folder: Path, version: str = NEWEST) -> list[dict[str, Any]]:
    """The objects of a release named `prod`, on this version of Kubernetes."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    done = _run(
        [
            *(str(program(*HELM)), "template", "prod", str(CHART)),
            *("--values", str(file), "--kube-version", version),
        ]
    )
    if done.returncode != 0:
        raise ChartError(done.stderr)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def violations(objects: Iterable[Mapping[str, Any]], folder: Path, version: str = NEWEST) -> str:
    """What kubeconform finds, strictly: an unknown field is a violation. Empty if nothing."""
    schemas = _schemas(version)
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all([dict(each) for each in objects]))
    done = _run(
        [
            *(str(program(*KUBECONFORM)), "-strict", "-kubernetes-version", version),
            *("-skip", ",".join(UNCHECKED), "-schema-location"),
            f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json",
            str(file),
        ]
    )
    return done.stdout + done.stderr


def _schemas(version: str) -> Path:
    """A copy of the schemas whose references are to files, in the cache."""
    folder = cache() / f"{SCHEMAS_WHEEL}-{version}"
    tried: list[str] = []
    place = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict"
    source = from_wheel(SCHEMAS_WHEEL, place, tried)
    if source is None:
        raise NoServerError(f"no schemas: {'; '.join(tried)}")
    with one_at_a_time(folder):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
                new = Path(parent) / "new"
                new.mkdir()
                for file in Path(source).glob("*.json"):
                    schema = json.loads(file.read_text())
                    schema.pop("$id", None)
                    text = json.dumps(schema).replace('"/api/_definitions.json#', '"_definitions.json#')
                    (new / file.name).write_text(text)
                new.rename(folder)
    return folder


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
