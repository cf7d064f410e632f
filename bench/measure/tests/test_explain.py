"""Tests of the scenarios of `cargo xtask explain`, with verdicts that were made for them."""

import copy
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

import explain
import main as runner
import scenarios
from scenarios import SCENARIOS

FACTS = {"pid": 4711}
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def finding(kind, name, **more):
    empty = {"stage": None, "operation": None, "cause": None, "share": 0.9, "since": None, "evidence": [], "neighbours": []}
    return empty | {"kind": kind, "name": name, "remedy": ""} | more


def verdict(*findings, cleared=()):
    entries = [{"kind": kind, "text": kind} for kind in cleared]
    tail = {"quantile": 0.999, "us": 1e4, "median_us": 300}
    return {"version": 1, "tail": tail, "findings": list(findings), "cleared": entries, "not_seen": []}


def neighbour(kind, name):
    return {"kind": kind, "name": name, "grade": "measured"}


# The verdict that each scenario expects.
NAMED = {
    "1": verdict(finding("device", "delay:6ms:mem:67M", evidence=[{"what": "p50", "ratio": 5.8}]), cleared=["network", "core"]),
    "2": verdict(finding("device", "stall:20ms:mem:70M", evidence=[{"what": "its 7 peers are alike", "ratio": 30}])),
    "3": verdict(
        finding("device", "delay:1005us", operation="write", evidence=[{"what": "completes last", "value": 99.5, "unit": "%"}])
    ),
    "4": verdict(finding("core", "core 0", cause="process", neighbours=[neighbour("process", "spinning-task (4711)")])),
    "5": verdict(finding("memory", "memory of core 0", remedy="serve --pool 512M")),
    "6": verdict(finding("connection", "3", neighbours=[neighbour("host", scenarios.host("bulk"))])),
    "7": verdict(finding("host", scenarios.host("paused"), cause="rwnd")),
    "8": verdict(finding("conflict", "disk.img", evidence=[{"what": "first block", "value": 2048}])),
    "9": verdict(finding("hot", "delay:300us-500us:mem:71M")),
    "10": verdict(finding("shared-device", "disk.img", neighbours=[neighbour("process", "dd (99)")])),
    "13": verdict(cleared=["mirror copies 12 %"]),
    "control": verdict(),
}


def complaints(name, found):
    return explain.complaints_about(found, BY_NAME[name], FACTS, {"1": 80.0})


class Scenarios(unittest.TestCase):
    def test_expected_verdicts_are_accepted(self):
        self.assertEqual(set(NAMED), set(BY_NAME))
        for name, found in NAMED.items():
            self.assertEqual(complaints(name, found), [], name)

    def test_verdicts_without_the_fault_are_rejected(self):
        for name, scenario in BY_NAME.items():
            if scenario.expected or scenario.checks:
                self.assertNotEqual(complaints(name, verdict()), [], name)

    def test_each_check_rejects_another_value(self):
        changes = {
            "1": lambda found: found["findings"][0]["evidence"][0].update(ratio=4.9),
            "2": lambda found: found["tail"].update(quantile=0.99),
            "3": lambda found: found["findings"][0]["evidence"][0].update(value=89),
            "4": lambda found: found["findings"][0]["neighbours"][0].update(name="spinning-task (4712)"),
            "5": lambda found: found["findings"][0].update(remedy="add memory"),
            "6": lambda found: found["findings"][0]["neighbours"][0].update(name=scenarios.host("reader")),
            "7": lambda found: found["findings"][0].update(cause="silent"),
            "8": lambda found: found["findings"][0]["evidence"][0].update(value=20480),
            "9": lambda found: found["findings"][0].update(kind="device"),
            "10": lambda found: found["findings"][0]["neighbours"][0].update(kind="volume"),
            "13": lambda found: found["cleared"][0].update(kind="network", text="network"),
        }
        for name, change in changes.items():
            found = copy.deepcopy(NAMED[name])
            change(found)
            self.assertNotEqual(complaints(name, found), [], name)

    def test_other_names_are_wrong_except_true_cores(self):
        for name, found in NAMED.items():
            wrong = copy.deepcopy(found)
            wrong["findings"].append(finding("turn", "core 0"))
            self.assertEqual(complaints(name, wrong), ["wrong: turn core 0"], name)
            true = copy.deepcopy(found)
            for more in [{"cause": "steal"}, {"cause": "process", "neighbours": [neighbour("process", "isolane (5)")]}]:
                true["findings"].append(finding("core", "core 1", **more))
            self.assertEqual(complaints(name, true), [], name)

    def test_core_is_excused_if_a_foreign_process_ran_for_most_of_it(self):
        def core(waited_ms, name):
            evidence = [{"what": "process", "value": waited_ms}]
            return verdict(finding("core", "core 0", cause="process", evidence=evidence, neighbours=[neighbour("process", name)]))

        self.assertEqual(complaints("control", core(120.0, "agent (PID 1)")), [])
        for wrong in [core(200.0, "agent (PID 1)"), core(120.0, "agent (PID 2)"), core(0.0, "agent (PID 2)")]:
            self.assertEqual(complaints("control", wrong), ["wrong: core core 0"])

    def test_foreign_process_disturbs_and_core_need_not_be_cleared(self):
        def core(share, name):
            evidence = [{"what": "process", "value": 120.0}]
            more = {"cause": "process", "evidence": evidence, "neighbours": [neighbour("process", name)]}
            return finding("core", "core 0", **more) | {"share": share}

        foreign = {"1": 70.0}
        for share, name, expected in [(0.6, "agent (PID 1)", True), (0.4, "agent (PID 1)", False), (0.6, "dd (PID 2)", False)]:
            self.assertEqual(explain.is_disturbed(verdict(core(share, name)), foreign), expected)
        found = copy.deepcopy(NAMED["1"])
        found["cleared"] = [entry for entry in found["cleared"] if entry["kind"] != "core"]
        self.assertEqual(complaints("1", found), ["not cleared: core"])
        found["findings"].append(core(0.2, "agent (PID 1)"))
        self.assertEqual(complaints("1", found), [])

    def test_hosts_have_names_of_their_own(self):
        for scenario in SCENARIOS:
            commands = [explain.bench_command(Bed, 1, load, at) for at, load in enumerate(scenario.loads)]
            for option in ["--host-nqn", "--host-id"]:
                names = {command[command.index(option) + 1] for command in commands}
                self.assertEqual(len(names), len(commands), scenario.name)

    @mock.patch.object(scenarios, "random_file", lambda path: path)
    def test_each_load_has_a_volume(self):
        with tempfile.TemporaryDirectory() as directory:
            for scenario in SCENARIOS:
                volumes = scenario.volumes(Path(directory))
                self.assertEqual(len(set(volumes)), len(volumes), scenario.name)
                self.assertEqual({load.nsid for load in scenario.loads}, set(range(1, len(volumes) + 1)), scenario.name)


class Bed:
    bench_arguments = serve_arguments = []
    target_core = host_core = both_cores = min(os.sched_getaffinity(0))

    @staticmethod
    def program(name):
        return name


STAND_IN = """#!/bin/sh
case $1 in
    serve) echo "listening on 127.0.0.1:1"; exec sleep 1000;;
    bench) {bench};;
    explain) {explain}; cat {verdict};;
esac
"""


class Runs(unittest.TestCase):
    """A scenario with a stand-in for the program."""

    def run_scenario(self, name, found, bench="exec sleep 1000", before_verdict=":", **options):
        with tempfile.TemporaryDirectory() as directory:
            bed, scratch = Bed(), Path(directory)
            bed.scratch, bed.program = scratch, lambda _: scratch / "isolane"
            (scratch / "verdict").write_text(json.dumps(found))
            program = STAND_IN.format(bench=bench, explain=before_verdict, verdict=scratch / "verdict")
            (scratch / "isolane").write_text(program.replace("DIRECTORY", directory))
            (scratch / "isolane").chmod(0o755)
            report = explain.measure(bed, [name], 2, "", scratch / "report.json", **options)
            self.assertEqual(json.loads((scratch / "report.json").read_text()), report)
            return report["explain"][0]["runs"]

    def setUp(self):
        explain.WARM_UP_S = explain.WINDOW_S = 0.05

    def test_results_have_verdict_and_figures(self):
        for run in self.run_scenario("control", NAMED["control"]):
            self.assertEqual((run["complaints"], run["verdict"]), ([], NAMED["control"]))
            self.assertIn("waited_percent", run["machine"])

    def test_ends_with_first_named_run(self):
        self.assertEqual(len(self.run_scenario("control", NAMED["control"], until_named=True)), 1)
        self.assertEqual(len(self.run_scenario("control", NAMED["8"], until_named=True)), 2)

    def test_injected_process_is_a_fact(self):
        runs = self.run_scenario("4", NAMED["4"])
        self.assertEqual(len({run["facts"]["pid"] for run in runs}), 2)
        self.assertIn("among the neighbors", runs[0]["complaints"][0])

    def test_paused_host_continues(self):
        self.assertEqual([run["complaints"] for run in self.run_scenario("7", NAMED["7"])], [[], []])

    def test_load_that_ends_is_a_failure(self):
        bench = "echo $$ > DIRECTORY/pid; echo no luck >&2; exit 3"
        has_ended = "until [ -s DIRECTORY/pid ]; do :; done; while grep -qs ') [^Z] ' /proc/$(cat DIRECTORY/pid)/stat; do :; done"
        for run in self.run_scenario("13", NAMED["13"], bench, has_ended):
            self.assertRegex(run["complaints"][0], "failed: .*ended early: no luck")


class Reports(unittest.TestCase):
    def test_table_counts_named_runs(self):
        runs = [{"complaints": []}, {"complaints": ["no device"]}, {"complaints": ["no device"]}]
        machine = {"processor": "", "cores": 2, "kernel": ""}
        report = {"machine": machine, "commit": "", "date": "", "command": ""}
        report["explain"] = [{"scenario": "1", "title": "slow", "runs": runs}]
        self.assertIn("| 1 | slow | 1 of 3 | 0 | no device |", runner.found_tables(report))
        self.assertFalse(explain.is_complete(report))
        self.assertTrue(explain.is_complete(report, until_named=True))
        report["explain"][0]["runs"] = runs[:1]
        self.assertTrue(explain.is_complete(report))


if __name__ == "__main__":
    unittest.main(warnings="ignore")
