"""Checks the deployment files: configurations are the daemon's, files exist, the sample agent loops."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

import yaml

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from browser import Browser

BINARY, WORK = sys.argv[1], pathlib.Path(sys.argv[2])
DEPLOY = pathlib.Path("deploy")


def checked(text, name, changes=()):
    """Whether the daemon accepts this configuration."""
    for old, new in changes:
        assert old in text, (name, old)
        text = text.replace(old, new)
    path = WORK / f"{name}.toml"
    path.write_text(text)
    result = subprocess.run([BINARY, "check", "--config", path], capture_output=True, text=True)
    assert result.returncode == 0, (name, result.stderr)


def packaged():
    text = (DEPLOY / "agentgauge.toml").read_text()
    checked(text, "packaged")
    # Commented-out examples work too, once their files exist.
    shown = text[text.index("# [listen]") :]
    shown = "\n".join(line.removeprefix("#") for line in shown.splitlines())
    shown = shown.replace("/etc/agentgauge", str(WORK))
    (WORK / "tokens").mkdir(exist_ok=True)
    for name in ("agents", "prometheus", "people"):
        (WORK / "tokens" / name).write_text(f"a-token-that-is-long-enough-for-{name}\n")
    certificate()
    checked(shown, "shown")


def certificate():
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    extension = ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
    files = ["-keyout", str(WORK / "tls.key"), "-out", str(WORK / "tls.crt")]
    subprocess.run([*command.split(), *extension, *files], check=True, capture_output=True)


def chart():
    for values, changes in (("null", ()), ("values.yaml", "all")):
        documents = [document for document in yaml.safe_load_all((WORK / f"{values}.manifests").read_text()) if document]
        boards = [document for document in documents if document["metadata"]["name"].endswith("-dashboard")]
        kinds = {document["kind"]: document for document in documents if document not in boards}
        config = kinds["ConfigMap"]["data"]["agentgauge.toml"]
        if changes:
            changes = (
                ("/etc/agentgauge/tls", str(WORK)),
                ("/etc/agentgauge/clients/ca.crt", str(WORK / "tls.crt")),
                ("/etc/agentgauge/tokens", str(WORK / "tokens")),
            )
            assert {"ServiceMonitor", "Role", "RoleBinding", "NetworkPolicy"} <= kinds.keys(), kinds.keys()
        checked(config, f"chart-{values}", changes)
        pod = kinds["StatefulSet"]["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["securityContext"]["runAsNonRoot"] is True
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        there = {volume["name"] for volume in pod["volumes"]}
        there |= {claim["metadata"]["name"] for claim in kinds["StatefulSet"]["spec"]["volumeClaimTemplates"]}
        assert mounted == there, (mounted, there)
        if changes:
            rules = WORK / "chart.rules.yml"
            rules.write_text(yaml.safe_dump(kinds["PrometheusRule"]["spec"]))
            subprocess.run(["promtool", "check", "rules", rules], check=True, stdout=subprocess.DEVNULL)
            # With the address of the values, as the daemon itself would write them.
            assert kinds["PrometheusRule"]["spec"] == yaml.safe_load((WORK / "rules.yml").read_text())
            assert 'public_url = "https://gauge.example.org/"' in config, config
            shown = {path.name: json.loads(path.read_text()) for path in DEPLOY.glob("grafana/*.json")}
            sent = [(name, json.loads(text)) for board in boards for name, text in board["data"].items()]
            assert len(sent) == len(boards) == len(shown) and dict(sent) == shown, [name for name, _ in sent]
            assert all(board["metadata"]["labels"]["grafana_dashboard"] == "1" for board in boards), boards
            assert all(board["metadata"]["annotations"] == {"grafana_folder": "agents"} for board in boards), boards
        else:
            assert "PrometheusRule" not in kinds and "ServiceMonitor" not in kinds and not boards
        scheme = "HTTPS" if changes else "HTTP"
        assert container["readinessProbe"]["httpGet"]["scheme"] == scheme


def rules():
    """The same rules for the operator and by the mixin; objectives that name what the daemon exports."""
    plain = yaml.safe_load((WORK / "rules.prometheus.yml").read_text())
    operator = yaml.safe_load((WORK / "rules.operator.yml").read_text())
    assert operator["kind"] == "PrometheusRule" and operator["spec"] == plain, operator["kind"]
    mixin, shown = json.loads((WORK / "mixin.json").read_text()), yaml.safe_load((WORK / "rules.yml").read_text())
    together = mixin["alerts"]["groups"] + mixin["rules"]["groups"]
    flat = lambda groups: sorted(json.dumps(rule, sort_keys=True) for group in groups for rule in group["rules"])
    assert flat(together) == flat(shown["groups"]), "the mixin has other rules"
    assert all("alert" in rule for group in mixin["alerts"]["groups"] for rule in group["rules"])
    for part in ("alerts", "rules"):
        path = WORK / f"mixin.{part}.yml"
        path.write_text(yaml.safe_dump(mixin[part]))
        subprocess.run(["promtool", "check", "rules", path], check=True, stdout=subprocess.DEVNULL)
    assert mixin["boards"].keys() == {path.name for path in DEPLOY.glob("grafana/*.json")}, mixin["boards"].keys()

    sloth = yaml.safe_load((WORK / "rules.sloth.yml").read_text())
    pyrra = list(yaml.safe_load_all((WORK / "rules.pyrra.yml").read_text()))
    assert (sloth["version"], len(sloth["slos"]), len(pyrra)) == ("prometheus/v1", 2, 2), (sloth, pyrra)
    queries = []
    for slo, one in zip(sloth["slos"], pyrra, strict=True):
        assert float(one["spec"]["target"]) == slo["objective"], (slo, one)
        events, ratio = slo["sli"]["events"], one["spec"]["indicator"]["ratio"]
        queries += [query.replace("{{.window}}", "5m") for query in events.values()]
        queries += [ratio[part]["metric"] for part in ("errors", "total")]
    recorded = [{"record": f"test:query{at}", "expr": query} for at, query in enumerate(queries)]
    path = WORK / "objectives.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "objectives", "rules": recorded}]}))
    subprocess.run(["promtool", "check", "rules", path], check=True, stdout=subprocess.DEVNULL)
    print(f"rules: the same for the operator and by the mixin; {len(queries)} queries of objectives are good")


def links(http):
    """Every link of every alert, in plain and in Helm's rendering, opened in a browser with the names of the sample agent."""
    url = f"http://{http}"
    chart = next(document for document in yaml.safe_load_all((WORK / "values.yaml.manifests").read_text())
                 if document and document["kind"] == "PrometheusRule")["spec"]
    plain = yaml.safe_load((DEPLOY / "prometheus/agentgauge.rules.yml").read_text())
    names = {"service_name": "shop", "gen_ai_agent_name": "support", "gen_ai_agent_version": "1.0"}
    followed = {}
    for rendered, base in ((plain, "http://127.0.0.1:9464"), (chart, "https://gauge.example.org")):
        found = {}
        for alert in (rule for group in rendered["groups"] for rule in group["rules"] if "alert" in rule):
            # An alert whose severity comes from its series has none of its own.
            severity = alert.get("labels", {}).get("severity")
            for key, link in alert["annotations"].items():
                if not key.endswith("_url"):
                    continue
                if key.startswith("example_"):
                    # Prometheus fills these in; where they lead is followed beside one.
                    found[alert["alert"], severity, key] = link.replace(base, url)
                    continue
                assert link.startswith(f"{base}/#/"), (alert["alert"], link)
                link = re.sub(
                    r"{{ with \$labels\.(\w+) }}([^{]*){{ \. \| urlquery }}{{ end }}",
                    lambda part: part[2] + names[part[1]] if part[1] in names else "",
                    link.replace(base, url),
                )
                link = re.sub(r"{{ \$labels\.(\w+) \| urlquery }}", lambda name: names.get(name[1], ""), link)
                assert "{{" not in link, (alert["alert"], link)
                words = [alert["alert"]] if key == "runbook_url" else ["support"]
                found[alert["alert"], severity, key] = (link, words)
        followed[base] = found
    plain, chart = followed.values()
    assert plain == chart, "the renderings lead elsewhere"
    opened = [found for (*_, key), found in plain.items() if not key.startswith("example_")]
    with Browser(WORK) as browser:
        for link, words in dict.fromkeys((link, tuple(words)) for link, words in opened):
            browser.shows(link, words)
    print(f"{len(opened)} links of alerts lead to what they are about, in plain and in Helm's rendering")


# The files that tarball and package install: the path under /usr, except for etc and lib, and the mode.
INSTALLED = {
    "bin/agentgauge": "755",
    "etc/agentgauge/agentgauge.toml": "644",
    # It may hold secrets.
    "etc/default/agentgauge": "600",
    "lib/systemd/system/agentgauge.service": "644",
    "share/man/man1/agentgauge.1": "644",
    "share/bash-completion/completions/agentgauge": "644",
    "share/fish/vendor_completions.d/agentgauge.fish": "644",
    "share/zsh/vendor-completions/_agentgauge": "644",
    "share/doc/agentgauge/config/agentgauge.toml": "644",
    "share/doc/agentgauge/README.md": "644",
    "share/doc/agentgauge/CHANGELOG.md": "644",
    "share/doc/agentgauge/docs/runbook.md": "644",
    "share/doc/agentgauge/docs/guides/README.md": "644",
    "share/doc/agentgauge/deploy/collector/otlp.yaml": "644",
    "share/doc/agentgauge/deploy/prometheus/agentgauge.rules.yml": "644",
    "share/doc/agentgauge/deploy/grafana/agentgauge-fleet.json": "644",
}


def unpacked(name, installed, binary):
    """Whether all installed files are in this tree, with their modes, and run there."""
    tree = WORK / name
    contents = dict(line.split(" ", 1)[::-1] for line in (WORK / f"{name}.contents").read_text().splitlines())
    for path, mode in installed.items():
        assert contents.get(path) == mode, (name, path, contents.get(path), sorted(contents))
    assert not [path for path, mode in contents.items() if int(mode, 8) & 0o7022], contents
    [unit] = [path for path in contents if path.endswith("/system/agentgauge.service")]
    assert (tree / unit).read_bytes() == (DEPLOY / "systemd/agentgauge.service").read_bytes()
    command = [tree / binary, "check", "--config", tree / "etc/agentgauge/agentgauge.toml"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    version = subprocess.run([tree / binary, "--version"], capture_output=True, text=True, check=True).stdout
    assert version == subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout, version
    print(f"{name}: {len(contents)} files, as they should be")


def tarball():
    unpacked("tarball", INSTALLED | {"LICENSE": "644"}, "bin/agentgauge")


def package():
    paths = {path if path.startswith(("etc/", "lib/")) else f"usr/{path}": mode for path, mode in INSTALLED.items()}
    paths["usr/share/man/man1/agentgauge.1.gz"] = paths.pop("usr/share/man/man1/agentgauge.1")
    unpacked("package", paths | {"usr/share/doc/agentgauge/copyright": "644"}, "usr/bin/agentgauge")
    conffiles = (WORK / "control/conffiles").read_text().split()
    assert sorted(conffiles) == ["/etc/agentgauge/agentgauge.toml", "/etc/default/agentgauge"], conffiles
    for script, word in (("postinst", "enable"), ("prerm", "stop"), ("postrm", "purge")):
        text = (WORK / "control" / script).read_text()
        assert word in text and "#DEBHELPER#" not in text, (script, text)
        subprocess.run(["sh", "-n", WORK / "control" / script], check=True)
    fields = dict(line.split(": ", 1) for line in (WORK / "control/control").read_text().splitlines() if line[0] != " ")
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    assert fields["Architecture"] == architecture, fields
    assert re.fullmatch(r"libc6 \(>= 2\.\d+\), libgcc-s1", fields["Depends"]), fields
    assert fields["Recommends"] == "ca-certificates" and fields["Suggests"] == "prometheus", fields


def compose():
    text = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    volumes = set()
    for name, service in text["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), (name, port)
        for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
            if source.startswith("."):
                assert (DEPLOY / source).exists(), (name, source)
            else:
                volumes.add(source)
        assert set(service.get("depends_on", [])) <= text["services"].keys(), name
        if build := service.get("build"):
            # Its context is made by deploy/release/build.
            assert os.path.exists(os.path.normpath(DEPLOY / build["context"] / build["dockerfile"])), (name, build)
        image = service["image"]
        assert ":" in image and not image.endswith(":latest"), image
    assert volumes == text["volumes"].keys(), volumes
    for path in [*DEPLOY.glob("compose/**/*.y*ml"), *DEPLOY.glob("collector/*.yaml")]:
        assert yaml.safe_load(path.read_text()), path
    for path in DEPLOY.glob("collector/*.yaml"):
        config = yaml.safe_load(path.read_text())
        for name, pipeline in config["service"]["pipelines"].items():
            for part in ("receivers", "processors", "exporters"):
                missing = set(pipeline[part]) - config[part].keys()
                assert not missing, (path, name, missing)
        assert set(config["service"]["extensions"]) <= config["extensions"].keys()


def value(lines, start, label):
    found = [float(line.split()[-1]) for line in lines if line.startswith(start) and label in line]
    return sum(found)


def sample_agent():
    listen = ["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    environment = {**os.environ, "AGENTGAUGE__ASSEMBLE__TRACE_IDLE": "500ms"}
    daemon = subprocess.Popen([BINARY, *listen], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        bound = json.loads(daemon.stdout.readline())
        agent = {
            **os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{bound['otlp_http']}", "OTEL_SERVICE_NAME": "shop",
            "LOOP_EVERY": "2", "SESSIONS": "2", "PAUSE_SECONDS": "0.1",
        }
        subprocess.run([sys.executable, DEPLOY / "compose/agent/agent.py"], env=agent, check=True)
        wanted = 'gen_ai_agent_name="support"'
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"http://{bound['http']}/metrics") as answer:
                page = answer.read().decode()
            lines = [line for line in page.splitlines() if wanted in line]
            loops = value(lines, "agentgauge_loops_detected_total{", 'severity="critical"')
            traces = value(lines, "agentgauge_agent_window_traces{", 'window="5m"')
            if (loops, traces) == (3, 6):
                print("sample agent: 2 sessions, 6 traces, 3 loops")
                links(bound["http"])
                return
            time.sleep(0.2)
        raise AssertionError((loops, traces, *lines))
    finally:
        daemon.terminate()
        assert daemon.wait(30) == 0


packaged()
tarball()
package()
chart()
rules()
compose()
sample_agent()
print("what is deployed is good")
