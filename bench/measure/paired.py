"""Contenders that alternate: their rounds, ratios, and the file with all samples."""

import json
import os
import pathlib
import statistics
import subprocess
import sys


def alternate(measure, contenders, rounds):
    """Returns the figure of each contender in each round."""
    return [{contender: measure(contender) for contender in contenders} for _ in range(rounds)]


def ratio(rounds, contender, base):
    """Returns the median of a contender, and a text with the ratio to another one."""
    ratios = [one[contender] / one[base] for one in rounds]
    median = statistics.median(one[contender] for one in rounds)
    return median, f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def save(path, work, program, rows):
    """Writes a report with all samples."""
    system = f"{os.cpu_count()} cores, Linux {os.uname().release}, Python {sys.version.split()[0]}"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    report = {"work": work, "machine": system, "program": version, "rows": rows}
    pathlib.Path(path).write_text(json.dumps(report, indent=1) + "\n")
