#!/usr/bin/python3
"""prometheus.py [ISOLANE] - metrics of a target, read by Prometheus, its tools, and its Python library.

Needs the Debian packages prometheus, python3-prometheus-client, and python3-jsonschema. Prints a line for each check,
and exits with status 1 if one fails. No check depends on a duration.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import jsonschema
from prometheus_client.openmetrics import parser

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALERTS = ROOT / "docs/prometheus/alerts.yml"
ALERTS_TEST = ROOT / "tests/prometheus/alerts_test.yml"
SCHEMA = ROOT / "docs/snapshot.schema.json"
DASHBOARD = ROOT / "docs/grafana/isolane.json"
NQN = "nqn.2014-08.org.example:metrics"
PATIENCE_S = 120
# Variables of Grafana.
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*"}


class Processes:
    """Programs that end with the checks, and their logs."""

    def __init__(self, work):
        self.work = work
        self.running = []

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
        return self

    def __exit__(self, *_):
        for process in self.running:
            process.kill()
            process.wait()

    def start(self, name, *command):
        with open(self.log(name), "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.work)
        self.running.append(process)

    def log(self, name):
        return self.work / f"{name}.log"

    def find(self, name, pattern):
        """Waits for a line of a log."""
        return wait(f"{pattern} in the log of {name}", lambda: re.search(pattern, self.log(name).read_text()))

    def print_logs(self):
        for log in sorted(self.work.glob("*.log")):
            print(f"{log.name} ends:", *log.read_text().splitlines()[-15:], sep="\n  ")


class Prometheus:
    """A server that scrapes a target each second."""

    def __init__(self, name, address, processes, *options):
        self.name, self.processes = name, processes
        config = processes.work / f"{name}.yml"
        jobs = [{"job_name": "isolane", "static_configs": [{"targets": [address]}]}]
        interval = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        # JSON is YAML.
        config.write_text(json.dumps({"global": interval, "rule_files": [str(ALERTS)], "scrape_configs": jobs}))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        storage = [f"--config.file={config}", f"--storage.tsdb.path={processes.work / name}"]
        processes.start(name, "prometheus", f"--web.listen-address=127.0.0.1:{port}", *storage, *options)

    def get(self, path, **parameters):
        answer = json.loads(fetch(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))
        return answer["data"]

    def query(self, expression):
        return self.get("query", query=expression)["result"]

    def value(self, expression):
        """Returns the only value of an expression."""
        result = self.query(expression)
        return float(result[0]["value"][1]) if len(result) == 1 else None

    def rules(self):
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def check_scrapes(self):
        self.processes.find(self.name, "Server is ready to receive web requests")
        wait(f"scrapes by {self.name}", lambda: (self.value("count_over_time(up[10m])") or 0) >= 3)
        [target] = self.get("targets")["activeTargets"]
        assert target["health"] == "up" and not target["lastError"], target
        lines = self.processes.log(self.name).read_text().splitlines()
        warnings = [line for line in lines if re.search(r"level=(warn|error)", line)]
        assert not warnings, warnings


class Setup:
    """A target that has done some work, and two servers of Prometheus that scrape it."""

    def __init__(self, isolane, processes):
        first, second, bitmap = (processes.work / name for name in ("first", "second", "bitmap"))
        volumes = [
            "stripe:4k:mem:4M;mem:4M;(delay:1ms:mem:4M)",
            f"mirror:({first},size=8M);({second},size=8M),bitmap={bitmap},create=yes",
        ]
        listeners = ["--nqn", NQN, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--control-socket", "off"]
        listeners += ["--acks", "1/10"]
        processes.start("target", isolane, "serve", *volumes, *listeners)
        self.metrics = processes.find("target", r"metrics at http://(\S+)/metrics")[1]
        address = processes.find("target", r"listening on (\S+)")[1]
        uri = f"nvme+tcp://{address}/{NQN}"
        for nsid, pattern in ((1, "randrw"), (2, "randwrite")):
            load = ["--rw", pattern, "--depth", "8", "--time", "2s"]
            run(isolane, "bench", f"{uri}?nsid={nsid}", *load)
        self.classic = Prometheus("classic", self.metrics, processes)
        self.native = Prometheus("native", self.metrics, processes, "--enable-feature=native-histograms")

    def text(self):
        return fetch(f"http://{self.metrics}/metrics").decode()

    def snapshot(self):
        return json.loads(fetch(f"http://{self.metrics}/snapshot.json"))


# Checks, in their order.


def python_library_reads_the_text(setup):
    families = parser.text_string_to_metric_families(setup.text())
    with_samples = [family.name for family in families if family.samples]
    assert len(with_samples) > 20, with_samples


def prometheus_scrapes_text_without_a_warning(setup):
    setup.classic.check_scrapes()
    assert setup.classic.query("isolane_io_seconds_bucket"), "no classic buckets"


def prometheus_scrapes_protobuf_without_a_warning(setup):
    setup.native.check_scrapes()
    assert setup.native.query("histogram_count(isolane_io_seconds)"), "no native histograms"
    assert not setup.native.query("isolane_io_seconds_bucket"), "classic buckets"


def both_formats_have_the_same_numbers(setup):
    # These numbers are final, unlike times.
    for expression in ("isolane_io_bytes_total", "isolane_io_max_seconds", "isolane_member_last_total"):
        both = [samples(server.query(expression)) for server in (setup.classic, setup.native)]
        assert both[0] and both[0] == both[1], both
    counts = samples(setup.classic.query('{__name__="isolane_io_seconds_count"}'))
    assert counts and counts == samples(setup.native.query("histogram_count(isolane_io_seconds)")), counts


def quantiles_match_the_snapshot(setup):
    for op in ("read", "write"):
        times = recorded_times(setup.snapshot(), 0, op)
        labels = f'isolane_io_seconds{{nsid="1",op="{op}",size="4K"}}'
        assert setup.native.value(f"histogram_count({labels})") == sum(count for _, count in times)
        for quantile in (0.1, 0.5, 0.9, 0.99, 0.999):
            ours = quantile_of(times, quantile)
            theirs = setup.native.value(f"histogram_quantile({quantile}, {labels})")
            assert abs(theirs / ours - 1) <= 0.1, f"{quantile} of {op}: {theirs} s instead of {ours} s"


def promtool_accepts_the_rules(_):
    run("promtool", "check", "rules", ALERTS)


def rules_pass_their_tests(_):
    run("promtool", "test", "rules", ALERTS_TEST)


def rules_are_evaluated_without_an_error(setup):
    for server in (setup.classic, setup.native):
        wait("an evaluation", lambda server=server: all(rule["health"] != "unknown" for rule in server.rules()))
        assert server.rules() and all(rule["health"] == "ok" for rule in server.rules()), server.rules()


def expressions_name_existing_families(setup):
    dashboard = texts_of(json.loads(DASHBOARD.read_text()), {"expr", "definition"})
    rules = [rule["query"] for rule in setup.classic.rules()]
    assert len(dashboard) > 20 and len(rules) > 5, (dashboard, rules)
    existing = names_of_samples(setup.text())
    for expression in dashboard + rules:
        used = set(re.findall(r"\bisolane_\w+", expression))
        assert used and used <= existing, f"{expression}: no {used - existing} in {sorted(existing)}"


def panels_have_data(setup):
    for expression in texts_of(json.loads(DASHBOARD.read_text()), {"expr"}):
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression, expression
        # Ratios end with the load.
        past = f"last_over_time(({expression})[10m:1s])"
        for server in (setup.classic, setup.native):
            has_data = lambda: server.query(expression) or server.query(past)
            wait(f"data of {expression} in {server.name}", has_data)


def snapshot_matches_the_published_schema(setup):
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(strict(schema))
    snapshot = setup.snapshot()
    assert snapshot["steps"] and snapshot["slow"], "no steps, or no slow operations"
    errors = [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(snapshot)]
    assert not errors, errors[:5]
    for wrong in ({"version": "1"}, {"slow": [{}]}, {"other": 1}):
        assert not validator.is_valid(snapshot | wrong), f"it accepts {wrong}"


CHECKS = [
    python_library_reads_the_text,
    prometheus_scrapes_text_without_a_warning,
    prometheus_scrapes_protobuf_without_a_warning,
    both_formats_have_the_same_numbers,
    quantiles_match_the_snapshot,
    promtool_accepts_the_rules,
    rules_pass_their_tests,
    rules_are_evaluated_without_an_error,
    expressions_name_existing_families,
    panels_have_data,
    snapshot_matches_the_published_schema,
]


# Helpers.


def wait(wanted, condition):
    """Returns the first true result of a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(wanted)
        time.sleep(0.1)
    return result


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)


def fetch(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return answer.read()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def samples(result):
    """Returns the labels of samples without their name, and their values."""
    labels = [sorted((name, value) for name, value in at["metric"].items() if name != "__name__") for at in result]
    return sorted((label, float(at["value"][1])) for label, at in zip(labels, result))


def recorded_times(snapshot, volume, op):
    """Returns the middles of the cells of a volume in seconds, and their counts, in their order."""
    cells = {}
    for series in snapshot["numbers"]["series"]:
        if (series["volume"], series["operation"], series["size"]) == (volume, op, "small"):
            per_doubling, _, counts = series["total"]
            assert per_doubling == 8, series
            for cell, count in counts:
                cells[cell] = cells.get(cell, 0) + count
    return [((start_of(cell) + start_of(cell + 1)) / 2e9, count) for cell, count in sorted(cells.items())]


def start_of(cell):
    """Returns the start of a cell in nanoseconds."""
    doubling, part = divmod(cell - 1, 8)
    return (8 + part) * 2**doubling * 8


def quantile_of(times, quantile):
    remaining = quantile * sum(count for _, count in times)
    for seconds, count in times:
        remaining -= count
        if remaining <= 0:
            return seconds
    raise ValueError("no times")


def texts_of(document, keys):
    """Returns the texts of all fields with these names."""
    if isinstance(document, list):
        return [text for at in document for text in texts_of(at, keys)]
    if not isinstance(document, dict):
        return []
    own = [value for key, value in document.items() if key in keys and isinstance(value, str)]
    return own + texts_of(list(document.values()), keys)


def strict(schema):
    """Returns a schema that rejects fields without a description."""
    if isinstance(schema, list):
        return [strict(at) for at in schema]
    if not isinstance(schema, dict):
        return schema
    fields = {key: strict(value) for key, value in schema.items()}
    return fields | {"additionalProperties": False} if "properties" in schema else fields


def names_of_samples(text):
    """Returns the names of all samples that the families of a text can have, with the names of native histograms."""
    suffixes = {"counter": ["_total"], "gauge": [""], "info": ["_info"], "histogram": ["", "_bucket", "_count", "_sum"]}
    families = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return {name + suffix for name, kind in families for suffix in suffixes[kind]}


def main():
    isolane = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ISOLANE_BIN", ROOT / "target/release/isolane")
    failed = 0
    with tempfile.TemporaryDirectory() as work, Processes(pathlib.Path(work)) as processes:
        setup = Setup(pathlib.Path(isolane).resolve(), processes)
        for check in CHECKS:
            name = check.__name__.replace("_", " ")
            try:
                check(setup)
                print(f"ok {name}", flush=True)
            except Exception as error:
                failed += 1
                output = f"{error.stdout} {error.stderr}" if isinstance(error, subprocess.CalledProcessError) else ""
                print(f"not ok {name}: {type(error).__name__}: {error} {output}", flush=True)
        if failed:
            processes.print_logs()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
