"""Tests of the measurements, without any measured program but the shell."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import main as runner
import hosts
import programs
import report as reports
import streams
import targets
import verbs
from rows import ROWS

ROOT = Path(__file__).parents[3]


def measured(*samples):
    """A report of (row, contender, iops, mean) samples."""
    report = {"machine": {"processor": "", "cores": 1, "kernel": ""}, "commit": "", "date": "", "command": "", "rows": []}
    for row, name, iops, mean_us in samples:
        reports.entry(report, row, 1.0, name)["samples"].append({"iops": iops, "mean_us": mean_us})
    return report


class Verbs(unittest.TestCase):
    def test_outputs_of_peers_are_read(self):
        fabric = "bytes #sent\n64 50k =50k 6.1m 0.19s 34.10 1.88 0.53\n"
        self.assertEqual(verbs.libfabric_sample(fabric)["p50_us"], 1.88)
        ucx = "Final:                  2000    107.253   139.107   139.107     7188.71    7188.71        7189        7189\n"
        self.assertEqual(verbs.ucx_sample(ucx), {"p50_us": 107.253, "operations_per_s": 7189.0, "mib_per_s": 7188.71})
        latency = verbs.Row("", "send", 64, 1, "p50_us", ())
        self.assertEqual(verbs.perftest_sample(" 64 1000 4.94 33.93 5.46 7.32 2.70 17.43 33.93\n", latency), {"p50_us": 5.46})
        rate = verbs.Row("", "write", 65536, 1, "operations_per_s", ())
        found = verbs.perftest_sample(" 65536 5000 6963.55 6462.76 0.103404\n", rate)
        self.assertEqual(found, {"operations_per_s": 103404.0, "mib_per_s": 6462.76})
        with self.assertRaises(programs.Failure):
            verbs.ucx_sample("no result")

    def test_table_has_ratios_of_rounds_and_missing_programs(self):
        samples = lambda *values: [{"p50_us": value} for value in values]
        contenders = [
            {"name": "floor", "samples": samples(2.0, 4.0)},
            {"name": "isolane", "samples": samples(3.0, 4.0)},
            {"name": "peer", "samples": []},
        ]
        suite = {"about": "", "verbs": [{"row": "SEND", "figure": "p50_us", "contenders": contenders}]}
        text = verbs.tables(suite)
        self.assertIn("1.25 (1.00–1.50)", text)
        self.assertIn("not run", text)


class Rows(unittest.TestCase):
    def test_names_are_unique(self):
        self.assertEqual(len({row.name for row in ROWS}), len(ROWS))

    def test_goals_name_contenders_of_their_row(self):
        for row in ROWS:
            names = {contender.name for contender in row.contenders}
            for goal in row.goals:
                self.assertIn(goal.of, names, row.name)
                self.assertTrue(names & set(goal.to), row.name)
                self.assertIn(goal.figure, reports.FIGURES)

    def test_core_rows_have_the_same_contenders(self):
        self.assertEqual(len({row.contenders for row in ROWS if row.core}), 1)

    def test_list_names_rows_and_missing_programs_once(self):
        missing = lambda contender: "nvmf_tgt is missing" if "spdk" in contender.name else None
        text = runner.list_rows(ROWS, missing)
        for row in ROWS:
            found = [line for line in text.splitlines() if line.split()[0] == row.name]
            self.assertEqual(len(found), 1, row.name)
        self.assertEqual(text.count("nvmf_tgt"), 1)
        self.assertIn("Without spdk, spdk-uring, spdk-host, spdk-target, spdk+digests, spdk-rbd, spdk-rbd+interrupts: nvmf_tgt", text)


class Reports(unittest.TestCase):
    def test_ratio_is_to_the_best_of_the_others(self):
        report = measured(
            ("r4k-qd1", "isolane", 900.0, 9.0), ("r4k-qd1", "spdk", 500.0, 20.0), ("r4k-qd1", "spdk-uring", 600.0, 18.0)
        )
        row, spdk = report["rows"][0], ["spdk", "spdk-uring", "absent"]
        self.assertEqual(reports.ratio(row, "isolane", spdk, "iops"), 1.5)
        self.assertEqual(reports.ratio(row, "isolane", spdk, "mean_us"), 0.5)
        self.assertIsNone(reports.ratio(row, "isolane", ["absent"], "iops"))

    def test_ratio_is_the_median_of_the_rounds(self):
        rates = [("isolane", rate) for rate in [90.0, 45.0, 44.0]] + [("floor", rate) for rate in [100.0, 100.0, 50.0]]
        report = measured(*(("r4k-qd8", name, rate, 1.0) for name, rate in rates))
        self.assertEqual(reports.ratio(report["rows"][0], "isolane", ["floor"], "iops"), 0.88)
        reports.entry(report, "r4k-qd8", 1.0, "floor")["errors"] = ["no luck"]
        self.assertEqual(reports.ratio(report["rows"][0], "isolane", ["floor"], "iops"), 0.45)

    def test_median_of_an_even_number_is_between_the_middle_two(self):
        report = measured(*(("r4k-qd8", "floor", rate * 1e3, 1.0) for rate in [4.0, 1.0, 2.0, 9.0]))
        self.assertEqual(reports.cell(report["rows"][0], "floor", "iops"), "3.00 k/s (1.00–9.00)")
        self.assertEqual(reports.cell(report["rows"][0], "floor", "p99_99_us"), "–")

    def test_written_report_reads_back(self):
        with tempfile.TemporaryDirectory() as directory:
            path, report = Path(directory) / "report.json", measured()
            reports.entry(report, "r4k-qd8", 2.0, "floor")["errors"] = ["no luck"]
            reports.write(report, path)
            self.assertEqual(reports.read(path), report)
            self.assertEqual(os.listdir(directory), ["report.json"])

    def test_report_has_a_line_for_each_contender(self):
        report = measured(*TWO_ROWS)
        lines = [line for line in reports.lines_of(report).splitlines() if '"samples"' in line]
        self.assertEqual(len(lines), len(TWO_ROWS))
        self.assertEqual(json.loads(reports.lines_of(report)), report)


class Results(unittest.TestCase):
    """The committed results, and the documents that quote them."""

    paths = sorted(ROOT.joinpath("bench", "results").iterdir())
    documents = {path: path.read_text() for path in [ROOT / "README.md", *ROOT.joinpath("docs").glob("*.md")]}

    def test_documents_quote_every_report_and_no_other(self):
        quoted = {name for text in self.documents.values() for name in re.findall(r"[0-9-]{11}[a-z-]+[.]jsonl?", text)}
        self.assertEqual(quoted, {path.name for path in self.paths})

    def test_reports_are_short(self):
        self.assertLess(sum(len(path.read_text().splitlines()) for path in self.paths), 6000)

    def test_documents_have_the_tables_of_their_reports(self):
        for path, text in self.documents.items():
            for name in re.findall("<!-- figures: (.*) -->", text):
                tables = runner.found_tables(reports.read(ROOT / "bench" / "results" / name))
                self.assertIn("\n|---|", tables, name)
                self.assertEqual(runner.inserted(text, name, tables), text, f"{path}: `cargo xtask table` of {name}")

    def test_chart_shows_its_report(self):
        report = reports.read(ROOT / "bench" / "results" / "2026-11-23-tables.json")
        self.assertEqual(reports.chart(report), ROOT.joinpath("docs", "performance.svg").read_text())


TWO_ROWS = [
    ("r4k-qd1", "floor", 1e5, 10.0),
    ("r4k-qd1", "isolane", 8e4, 12.5),
    ("r4k-qd32", "floor", 1e6, 32.0),
    ("r4k-qd32", "isolane", 9.5e5, 33.0),
]


class Tables(unittest.TestCase):
    def test_depth_one_is_a_round_trip_and_others_a_rate(self):
        text = reports.tables(measured(*TWO_ROWS))
        self.assertIn("| 10.00 µs (10.00–10.00) | 12.50 µs (12.50–12.50) **1.25x** |", text)
        self.assertIn("| 1000 k/s (1000–1000) | 950 k/s (950–950) **0.95x** |", text)

    def test_goals_are_met_or_not_and_absent_peers_left_out(self):
        text = reports.tables(measured(*TWO_ROWS))
        self.assertIn("isolane / floor | 1.25 | ≤ 1.08 | **not met** |", text)
        self.assertIn("isolane / floor | 0.95 | ≥ 0.90 | met |", text)
        self.assertNotIn("SPDK, epoll", text)

    def test_longer_bars_are_better_for_round_trips(self):
        self.assertIn(">0.80</text>", reports.chart(measured(*TWO_ROWS)))
        self.assertIsNone(reports.chart(measured()))


def stream(via, rate, **more):
    common = {"work": "transmit", "via": via, "size": 64, "engine_ns": 1.0}
    return common | {"mb_per_s": rate, "app_ns": 100 / rate, "total_ns": 200 / rate} | more


class Streams(unittest.TestCase):
    def test_ratios_are_of_the_same_round(self):
        cases = [[stream("native", rate) for rate in [1.0, 10.0, 2.0]], [stream("engine", rate) for rate in [4.0, 40.0, 6.0]]]
        self.assertIn("| 64 B | 2.0, 6.0 | 4.00 (3.00–4.00) |", streams.tables({"about": "about", "cases": cases}))

    def test_programs_that_combine_messages_are_columns(self):
        cases = [[stream(via, rate)] for via, rate in [("engine", 8.0), ("buffered", 4.0), ("nagle", 2.0), ("more", 1.0)]]
        expected = "| 64 B | 4.0, 2.0, 1.0 | 25, 50, 100 | 50, 100, 200 | 2.00, 4.00, 8.00 |"
        self.assertIn(expected, streams.tables({"about": "about", "cases": cases}))


class Hosts(unittest.TestCase):
    def test_report_without_figures_is_an_error(self):
        self.assertEqual(hosts.of_report({"iops": 10.5, "latency_us": {"mean": 95}})["mean_us"], 95)
        with self.assertRaises(LookupError):
            hosts.of_report({"iops": 10.5})

    def test_reads_the_requested_direction_of_fio(self):
        sides = '{"jobs": [{"read": {"iops": 1000.0, "lat_ns": {"mean": 2500.0}}, "write": {"iops": 0.0, "lat_ns": {"mean": 0.0}}}]}'
        self.assertEqual(hosts.of_fio(f"note: a hint\n{sides}", "read"), {"iops": 1000.0, "mean_us": 2.5})
        with self.assertRaises(programs.Failure):
            hosts.of_fio("fio: engine nbd not loadable", "read")

    def test_reads_the_total_of_spdk_perf(self):
        output = """Device Information : IOPS MiB/s Average min max
TCP (addr) NSID 1 from core 1: 820936.33 3206.78 38.95 20.30 912.04
==========
Total                 :  820936.33    3206.78      38.95      20.30     912.04

"""
        self.assertEqual(hosts.of_spdk_perf(output), {"iops": 820936.33, "mean_us": 38.95})
        with self.assertRaises(programs.Failure):
            hosts.of_spdk_perf("no controller found")

    def test_spdk_serves_a_namespace_for_each_device(self):
        systems = targets.spdk_config("posix", 4420, [("bdev_rbd_create", {"name": "bdev1"})], 2)["subsystems"]
        calls = [call for system in systems for call in system["config"]]
        self.assertIn({"method": "bdev_rbd_create", "params": {"name": "bdev1"}}, calls)
        spaces = [call["params"]["namespace"] for call in calls if call["method"] == "nvmf_subsystem_add_ns"]
        self.assertEqual(spaces, [{"bdev_name": "bdev1", "nsid": 1}, {"bdev_name": "bdev2", "nsid": 2}])

    def test_spdk_memory_grows_with_many_connections(self):
        self.assertEqual([targets.spdk_target_mib(1), targets.spdk_target_mib(16)], [1024, 1024])
        self.assertEqual(targets.spdk_target_mib(1000), 256 + 3256)


class Programs(unittest.TestCase):
    def test_failure_names_the_program_and_shows_its_log(self):
        with self.assertRaisesRegex(programs.Failure, "sh ended with status 3: no luck"):
            programs.run(["sh", "-c", "echo no luck >&2; exit 3"])

    def test_kills_programs_that_do_not_end(self):
        process = programs.Process(["sh", "-c", "exec sleep 1000"])
        with self.assertRaisesRegex(programs.Failure, "did not end in time"):
            process.finish(0.05)
        self.assertEqual(process.child.returncode, -signal.SIGTERM)

    def test_waits_for_output(self):
        with programs.Process(["sh", "-c", "echo ready 7; exec sleep 1000"]) as process:
            self.assertEqual(process.wait_for(lambda: process.stdout().removeprefix("ready ")), "7\n")

    def test_sleeping_process_uses_little_time(self):
        with programs.Process(["sleep", "1000"]) as process:
            self.assertLess(programs.core_percent(process.pid, 0.2), 50)
        with self.assertRaises(OSError):
            programs.core_percent(1 << 30, 0)


class CommandLine(unittest.TestCase):
    def test_rejects_unknown_rows_and_contenders(self):
        for arguments, error in [(["r4k"], "no row r4k"), (["r4k-qd1", "--peers", "linux"], "no contender linux")]:
            command = [sys.executable, "-B", Path(__file__).parents[1] / "main.py", "bench", *arguments, "--json", "/dev/null/none"]
            found = subprocess.run(command, capture_output=True, text=True)
            self.assertIn(error, found.stderr)
            self.assertEqual(found.returncode, 1)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
