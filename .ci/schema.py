"""Runs every command with --json against a cluster of processes and validates what it prints by docs/schema.json.

Usage: schema.py CONVOKE
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from inputs import large_loop, long_product, out_of_range, unlike
from jsonschema import Draft202012Validator

MODEL = ["fixtures/digits/model.onnx", "--inputs", "fixtures/digits/test.npz"]
LANGUAGE = ["fixtures/language/cached/model.onnx", "--tokenizer", "fixtures/language/tokenizer.json"]
BOUND = 120  # seconds for anything

# What the name of a number ends with: what it is a number of.
UNITS = ("bytes", "_ms", "_ns", "_seconds", "_per_second", "_per_minute", "_percent")
# Numbers without a unit: how many there are of what they are called, and the values and places of results.
PLAIN = {
    "aborts", "arriving_tensors", "assumed_iterations", "attempt", "connections", "cores", "cut_edges", "functions", "held_programs", "leases", "limit", "live_handles", "live_steps", "max_abs", "ops",
    "max_abs_err", "nodes", "of", "open_loops", "open_steps", "operations", "opset", "parameters", "paused", "prompt_tokens", "received_datagrams", "received_programs", "refused", "sent_datagrams", "sessions", "shape", "size", "steps",
    "steps_done", "steps_failed", "threads", "tokens", "uncounted_nodes", "unused_programs", "waiting", "waiting_receives",
    "waiting_tensors", "weight", "workers",
}

with open("docs/schema.json") as file:
    SCHEMA = json.load(file)
Draft202012Validator.check_schema(SCHEMA)
seen, plain = set(), set()


def valid(name, line):
    """Checks one line of output; answers its value."""
    value = json.loads(line)
    validator = Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})
    errors = [f"{e.json_path}: {e.message}" for e in validator.iter_errors(value)]
    if errors:
        sys.exit(f"schema: {name}: {'; '.join(errors)[:2000]}\n{line[:2000]}")
    seen.add(name)
    return value


def check_units(schema, name="", known=False):
    """Each number says what it is in: by its name, by that of what it is a part of, or by a `unit` beside it."""
    properties = schema.get("properties", {})
    known = known or name.endswith(UNITS) or "unit" in properties
    kinds = schema.get("type", [])
    if {"integer", "number"} & set([kinds] if isinstance(kinds, str) else kinds) and not known:
        if name not in PLAIN:
            sys.exit(f"schema: '{name}' is a number of what?")
        plain.add(name)
    for part, value in properties.items():
        check_units(value, part, known)
    for value in [schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", [])]:
        if isinstance(value, dict):
            check_units(value, name, known)


def in_kernel(state):
    """Whether a worker's black box has a node in it that runs now, besides its head."""
    with open(os.path.join(state, "black-box"), "rb") as file:
        page = file.read()
    return any(page[at:at + 4] != bytes(4) for at in range(256, len(page), 256))


def main(convoke, folder):
    def path(name):
        return os.path.join(folder, name)

    def run(schema, *args, rc=0):
        done = subprocess.run([convoke, *args, "--json"], capture_output=True, text=True, timeout=BOUND)
        if done.returncode != rc:
            sys.exit(f"schema: {args} ended with {done.returncode}: {done.stderr}")
        return valid(schema, done.stdout)

    def start(schema, *args):
        process = subprocess.Popen([convoke, *args, "--json", "--log", "error"], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process, valid(schema, process.stdout.readline())

    def end(process):
        process.send_signal(signal.SIGINT)
        process.wait(BOUND)

    def begin(*args):
        process = subprocess.Popen([convoke, *args, "--json"], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    def wait(what, is_so):
        end_of_wait = time.monotonic() + BOUND
        while not is_so():
            if time.monotonic() > end_of_wait:
                sys.exit(f"schema: not in {BOUND} s: {what}")
            time.sleep(0.005)

    def start_worker(name):
        workers[name], _ = start(
            "worker", "worker", "--join", at, "--token-file", path("worker"), "--name", name, "--threads", "1",
            "--memory", "300MiB", "--cache", "0", "--state-dir", path(name))

    def token_ids():
        return {token["id"] for token in run("token_list", "token", "list", *here)["tokens"]}

    processes = []
    try:
        state = path("coordinator")
        here = ["--state-dir", state]
        _, ready = start("coordinator", "coordinator", "--listen", "127.0.0.1:0", *here)
        at = ready["listen"]
        for role in ("worker", "client"):
            run("token_create", "token", "create", "--role", role, "--memory", "90%", "--out", path(role), *here)
        workers = {}
        for name in ("w0", "w1"):
            start_worker(name)
        there = ["--connect", at, "--token-file", path("client")]
        run("run", "run", *MODEL, "--workers", "2", "--verify", *there)
        compared = run("run", "run", MODEL[0], "--inputs", unlike(folder), "--verify", *there, rc=1)["verify"]["expected"]
        if not [c for c in compared if "problem" in c and c["max_abs_err"] is None]:
            sys.exit(f"schema: no output is missing: {compared}")
        run("generate", "generate", *LANGUAGE, "--prompt", "a", "--max-tokens", "3", "--workers", "2", *there)
        run("check", "check", MODEL[0])
        run("plan", "plan", *MODEL, "--workers", "2", "--pin", "*=w*", *there)
        body, = run("plan", "plan", large_loop(folder), *there)["bodies"]
        if len(body["parts"]) != 2 or not body["cut_edges"]:
            sys.exit(f"schema: the loop's body is not on both workers: {body}")
        run("error", "run", "no-such-model.onnx", *there, rc=1)
        failing = ["fixtures/mini_transformer/model.onnx", "--inputs", out_of_range(folder)]
        partial = run("run", "run", *failing, "--partial", *there, rc=1)
        if not partial["failed"]:
            sys.exit(f"schema: no output failed: {partial}")
        # With a program installed, so that there is something to tell.
        long = begin("run", *MODEL, "--workers", "2", "--steps", "10000000", *there)
        wait("a program is installed", lambda: run("status", "status", *here)["leases"])
        run("status", "status", *there)
        watch = begin("status", "--watch=100ms", *here)
        for _ in range(2):
            valid("status", watch.stdout.readline())
        end(watch)
        if watch.returncode != 0:
            sys.exit(f"schema: a watch ended with {watch.returncode}")
        end(long)
        valid("error", long.stdout.readline())
        run("health", "status", "--health", *there)
        run("health", "status", "--health", "--member", "w7", *there, rc=1)
        used = token_ids()
        run("token_create", "token", "create", "--role", "client", "--requests", "1MiB", "--joins", "60", *here)
        unused, = token_ids() - used
        run("token_revoke", "token", "revoke", unused, *here)
        run("drain", "drain", "w1", *here)
        workers["w1"].wait(BOUND)
        run("undrain", "undrain", "w1", *here)
        # A node in which its worker dies twice, as it does by a kernel that is wrong.
        square = long_product(folder)
        for deaths in (1, 2):
            deadly = begin("run", *square, "--retry", "off", "--pin", "square=w0", *there)
            wait("the node runs", lambda: in_kernel(path("w0")))
            workers["w0"].send_signal(signal.SIGSEGV)
            workers["w0"].wait(BOUND)
            valid("error", deadly.stdout.readline())
            start_worker("w0")
            known = lambda: [len(q["deaths"]) for q in run("status", "status", *here)["quarantine"]]
            wait(f"the node has killed {deaths}", lambda: known() == [deaths])
        run("quarantine_lift", "quarantine", "lift", "square", *here)
        run("error", "quarantine", "lift", "square", *here, rc=1)
        workers["w0"].kill()
        is_lost = lambda: any(m["state"] == "lost" for m in run("status", "status", *here)["members"])
        wait("the killed worker is lost", is_lost)
        run("forget", "forget", "w0", *here)
        run("ca", "ca", "rotate", *here)
        run("error", "ca", "retire", *here, rc=1)
        run("ca", "ca", "retire", "--now", *here)
        run("backup", "backup", path("backup"), *here)
        run("backup", "restore", path("backup"), "--state-dir", path("restored"))
        _, ready = start("up", "up", "--workers", "1", "--listen", "127.0.0.1:0", "--run-dir", path("run"))
        run("status", "status", "--state-dir", ready["state_dir"])
        run("bench", "bench", "--only", "call_local", "--rounds", "1")
    finally:
        for process in processes:
            if process.poll() is None:
                end(process)
    parts = {"code", "incarnation", "lease", "function", "role", "site", "error_value", "holding", "connections",
             "worker_status", "member"}
    if missing := set(SCHEMA["$defs"]) - seen - parts:
        sys.exit(f"schema: never printed: {missing}")
    print(f"valid: {', '.join(sorted(seen))}")


for definition in SCHEMA["$defs"].values():
    check_units(definition)
if PLAIN != plain:
    sys.exit(f"schema: no numbers any more: {PLAIN - plain}")
with tempfile.TemporaryDirectory() as scratch:
    main(sys.argv[1], scratch)
