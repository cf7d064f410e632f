#!/usr/bin/env python3
"""verdict.py SCENARIO < JSON - whether a verdict names the fault that was injected in a guest."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench/measure"))

from explain import complaints_about
from scenarios import Expected, Scenario, neighbour, value_of


def only(kind):
    """The verdict has one finding of a kind."""

    def check(verdict, _):
        names = [finding["name"] for finding in verdict["findings"] if finding["kind"] == kind]
        return None if len(names) == 1 else f"{len(names)} findings of kind {kind}: {names}"

    return check


EXPECTED = {
    "11": Expected("device", "/dev/nvme0n1", (only("device"), neighbour("irq", "slow_handler", "shares"))),
    "11-deep": Expected("device", "/dev/nvme0n1", (only("device"), neighbour("irq", "slow_handler", "measured"))),
    "14": Expected("device", "slow (/dev/slow1, /dev/slow2)", (only("device"),)),
    "12": Expected("network", "10.1.0.2", (value_of("cause", "loss"),)),
    "12-quota": Expected("core", "0", (value_of("cause", "quota"),)),
}


def main():
    name = sys.argv[1]
    verdict = json.load(sys.stdin)
    scenario = Scenario(name, "", None, (), EXPECTED[name])
    complaints = complaints_about(verdict, scenario, {}, {})
    print(json.dumps(verdict, indent=2))
    print("named" if not complaints else "\n".join(complaints))
    sys.exit(bool(complaints))


main()
