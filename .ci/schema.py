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

from jsonschema import Draft202012Validator

MODEL = ["fixtures/digits/model.onnx", "--inputs", "fixtures/digits/test.npz"]
BOUND = 120  # seconds for anything

with open("docs/schema.json") as file:
    SCHEMA = json.load(file)
Draft202012Validator.check_schema(SCHEMA)
seen = set()


def valid(name, line):
    """Checks one line of output; answers its value."""
    value = json.loads(line)
    validator = Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})
    errors = [f"{e.json_path}: {e.message}" for e in validator.iter_errors(value)]
    if errors:
        sys.exit(f"schema: {name}: {'; '.join(errors)[:2000]}\n{line[:2000]}")
    seen.add(name)
    return value


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
            workers[name], _ = start(
                "worker", "worker", "--join", at, "--token-file", path("worker"), "--name", name, "--threads", "1",
                "--memory", "300MiB", "--cache", "0", "--state-dir", path(name))
        there = ["--connect", at, "--token-file", path("client")]
        run("run", "run", *MODEL, "--workers", "2", "--verify", *there)
        run("plan", "plan", *MODEL, "--workers", "2", "--pin", "*=w*", *there)
        run("error", "run", "no-such-model.onnx", *there, rc=1)
        # With a program installed, so that there is something to tell.
        long = subprocess.Popen([convoke, "run", *MODEL, "--workers", "2", "--steps", "10000000", "--json", *there],
                                stdout=subprocess.PIPE, text=True)
        processes.append(long)
        end_of_wait = time.monotonic() + BOUND
        while not run("status", "status", *here)["leases"]:
            if time.monotonic() > end_of_wait:
                sys.exit("schema: no program is installed")
        run("status", "status", *there)
        end(long)
        valid("error", long.stdout.readline())
        run("health", "status", "--health", *there)
        run("health", "status", "--health", "--member", "w7", *there, rc=1)
        run("token_create", "token", "create", "--role", "client", *here)
        listed = run("token_list", "token", "list", *here)
        run("token_revoke", "token", "revoke", listed["tokens"][-1]["id"], *here)
        run("drain", "drain", "w1", *here)
        workers["w1"].wait(BOUND)
        run("undrain", "undrain", "w1", *here)
        workers["w0"].kill()
        while all(m["state"] != "lost" for m in run("status", "status", *here)["members"]):
            if time.monotonic() > end_of_wait:
                sys.exit("schema: a killed worker is not lost")
        run("forget", "forget", "w0", *here)
        run("error", "quarantine", "lift", "no such node", *here, rc=1)
        run("ca", "ca", "rotate", *here)
        run("backup", "backup", path("backup"), *here)
        run("backup", "restore", path("backup"), "--state-dir", path("restored"))
        _, ready = start("up", "up", "--workers", "1", "--listen", "127.0.0.1:0", "--run-dir", path("run"))
        run("status", "status", "--state-dir", ready["state_dir"])
        run("bench", "bench", "--only", "call_local", "--rounds", "1")
    finally:
        for process in processes:
            if process.poll() is None:
                end(process)
    # Nodes are lifted that killed two workers, which no command does.
    parts = {"code", "incarnation", "lease", "function", "role", "site", "error_value", "holding", "connections",
             "worker_status", "member", "quarantine_lift"}
    if missing := set(SCHEMA["$defs"]) - seen - parts:
        sys.exit(f"schema: never printed: {missing}")
    print(f"valid: {', '.join(sorted(seen))}")


with tempfile.TemporaryDirectory() as scratch:
    main(sys.argv[1], scratch)
