#!/usr/bin/python3
"""The JSON Schema of configuration files against the parser: files that both accept, and files that both refuse.

Needs the Debian package python3-jsonschema, and uses check-jsonschema also if it is installed. Prints a line for each
check, `ok NAME` or `not ok NAME`. ISOLANE_BIN is the program (default: target/release/isolane).
"""

import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import traceback

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent
ISOLANE = os.environ.get("ISOLANE_BIN", str(ROOT / "target/release/isolane"))
DATE = tomllib.loads("date = 2026-01-01")["date"]

# A file with every key.
FULL = (ROOT / "crates/isolane-config/src/full.toml").read_text()

# Files that are wrong in one place, and the schema can know it.
BAD = {
    "unknown key": 'srever = {}',
    "unknown key of a port": '[[port]]\nname = "a"\nlisten = "1"\nadress = "1"',
    "reserved key": '[[port]]\nname = "a"\nlisten = "1"\nsecurity = "tls"',
    "missing key": '[[port]]\nname = "a"',
    "one table instead of a list": '[port]\nname = "a"\nlisten = "1"',
    "unknown word": 'server.mode = "fast"',
    "number out of range": "server.io-queues = 0",
    "number as a text": 'server.io-queues = "8"',
    "size without a unit that exists": 'server.pool = "64X"',
    "time without a unit": 'server.stall-after = "10"',
    "time as a number": "server.stall-after = 10",
    "switch as a text": 'server.observe = "off"',
    "relative path": 'server.state = "state"',
    "key of authentication": '[[host]]\nname = "a"\nnqn = "nqn.2014-08.org.example:a"\nauth-key = "DHHC-1:00:aaaa:"',
    "three keys": '[[host]]\nname = "a"\nnqn = "nqn.2014-08.org.example:a"\nauth-key = ["file:/a", "file:/b", "file:/c"]',
    "name with a space": '[[port]]\nname = "a b"\nlisten = "1"',
    "name of no domain": '[[host]]\nname = "a"\nnqn = "host"',
    "name of discovery": '[[subsystem]]\nnqn = "nqn.2014-08.org.nvmexpress.discovery"\nports = ["a"]\nhosts = []',
    "no port": '[[subsystem]]\nnqn = "nqn.2014-08.org.example:a"\nports = []\nhosts = []',
    "all hosts by a wrong word": '[[subsystem]]\nnqn = "nqn.2014-08.org.example:a"\nports = ["a"]\nhosts = "all"',
    "list of unknown actions": 'server.on-slow = "log,none"',
}


def isolane(*arguments):
    return subprocess.run([ISOLANE, *arguments], capture_output=True, text=True, timeout=60)


def parser_accepts(text):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return isolane("config", "check", file.name)


def valid_files():
    document = (ROOT / "docs/CONFIG.md").read_text()
    yield from re.findall(r"```toml\n(.*?)```", document, re.DOTALL)
    yield (ROOT / "docs/isolane.toml").read_text()
    yield FULL
    dump = isolane("config", "dump", "--nqn", "nqn.2014-08.org.example:a", "--cores", "0", "/srv/a.img", "mem:1M")
    assert dump.returncode == 0, dump.stderr
    yield dump.stdout


def schema():
    return json.loads(isolane("config", "schema").stdout)


def validator():
    return jsonschema.Draft202012Validator(schema())


def show(value):
    """TOML of a value."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {show(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value)) + "]"
    return "2026-01-01" if value is DATE else json.dumps(value)


def text_of(document):
    return "".join(f"{json.dumps(key)} = {show(value)}\n" for key, value in document.items())


def places(value, path=()):
    """Paths of all members and entries."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in entries:
        yield path + (key,)
        yield from places(one, path + (key,))


def mutants(document):
    """Copies of a document that differ in one place, and their descriptions."""
    for path in places(document):
        def changed(change):
            mutant = copy.deepcopy(document)
            parent = mutant
            for key in path[:-1]:
                parent = parent[key]
            change(parent, path[-1])
            return mutant

        name = ".".join(map(str, path))
        for wrong in (True, -1, 0, 1.5, 10**12, "", " ", "x", "10", "/x", [], ["x"], [1], {}, {"x": 1}, DATE):
            yield f"{name} = {wrong!r}", changed(lambda parent, key: parent.__setitem__(key, wrong))
        yield f"without {name}", changed(lambda parent, key: parent.pop(key))
        if isinstance(path[-1], str):
            yield f"{name} renamed", changed(lambda parent, key: parent.__setitem__(key + "x", parent.pop(key)))


def schema_is_valid():
    jsonschema.Draft202012Validator.check_schema(schema())


def both_accept_valid_files():
    judge = validator()
    for text in valid_files():
        checked = parser_accepts(text)
        assert checked.returncode == 0, checked.stderr + text
        errors = [f"{error.json_path}: {error.message[:200]}" for error in judge.iter_errors(tomllib.loads(text))]
        assert not errors, (errors, text)


def both_refuse_bad_files():
    judge = validator()
    for name, text in BAD.items():
        assert parser_accepts(text).returncode == 1, f"the parser accepts {name}"
        assert not judge.is_valid(tomllib.loads(text)), f"the schema accepts {name}"


def schema_is_no_stricter_than_the_parser():
    """The parser checks relations also, so it can refuse more."""
    judge, document, refused = validator(), tomllib.loads(FULL), 0
    for name, mutant in mutants(document):
        if judge.is_valid(mutant):
            continue
        refused += 1
        # One program for each would take minutes.
        if refused % 8 == 0:
            assert parser_accepts(text_of(mutant)).returncode == 1, f"only the schema refuses {name}"
    assert refused > 500, refused


def schema_accepts_each_file_that_the_parser_accepts():
    judge, document, accepted = validator(), tomllib.loads(FULL), 0
    for number, (name, mutant) in enumerate(mutants(document)):
        if number % 8 == 0 and parser_accepts(text_of(mutant)).returncode == 0:
            accepted += 1
            assert judge.is_valid(mutant), f"only the parser accepts {name}"
    assert accepted > 10, accepted


def check_jsonschema_agrees():
    program = shutil.which("check-jsonschema")
    if not program:
        return "check-jsonschema is not installed"
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        (directory / "schema.json").write_text(json.dumps(schema()))

        def accepts(text):
            (directory / "file.toml").write_text(text)
            command = [program, "--schemafile", directory / "schema.json", directory / "file.toml"]
            return subprocess.run(command, capture_output=True, timeout=60).returncode == 0

        for text in valid_files():
            assert accepts(text), text
        for name, text in BAD.items():
            assert not accepts(text), name


CHECKS = [
    schema_is_valid,
    both_accept_valid_files,
    both_refuse_bad_files,
    schema_is_no_stricter_than_the_parser,
    schema_accepts_each_file_that_the_parser_accepts,
    check_jsonschema_agrees,
]


def main():
    failed = False
    for check in CHECKS:
        try:
            skipped = check()
            print(f"ok {check.__name__}" + (f" # skipped: {skipped}" if skipped else ""), flush=True)
        except Exception:
            failed = True
            print(f"not ok {check.__name__}", flush=True)
            traceback.print_exc(file=sys.stdout)
    return failed


if __name__ == "__main__":
    sys.exit(main())
