#!/usr/bin/env python3
"""Installs pinned versions of clients, and runs the unchanged clients against a server.

Usage: run.py (--url BASE_URL | --program TIERCEL) [--fast] [CLIENT...]

With --url, the server at BASE_URL (which ends with `/v1`) must answer with the replies of `replies.toml`. With
--program, the script starts a server on the mock device with these replies. The packages of a client are installed into
a folder below `target/agents`, whose name has a hash of the pinned versions. --fast leaves out clients that take more
than a minute to install. Without npm, the clients that need npm do not run. The exit status is 1 if a client fails.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parents[2] / "target" / "agents"
# Maximum time of a client's run, and of a server's start, s.
RUN_S, START_S = 300, 60
# Python clients: the name of each client, its script, and the name of its requirements file.
PYTHON = {
    "openai-python": ("openai_python.py", "openai"),
    "instructor": ("instructor_client.py", "instructor"),
    "pydantic-ai": ("pydantic_ai_client.py", "pydantic-ai"),
    "langchain": ("langchain_client.py", "langchain"),
    "llama-index": ("llama_index_client.py", "llama-index"),
    "smolagents": ("smolagents_client.py", "smolagents"),
    "openai-agents": ("openai_agents_client.py", "openai-agents"),
    "llm": ("llm_client.py", "llm"),
    "litellm": ("litellm_client.py", "litellm"),
    "litellm-proxy": ("litellm_proxy.py", "litellm"),
}
NODE = {"openai-node": "openai_node.mjs", "ai-sdk": "ai_sdk.mjs", "editors": "editors.mjs"}
# Clients whose packages have more than 500 MB.
SLOW = {"litellm", "litellm-proxy", "promptfoo"}
ALL = [*PYTHON, *NODE, "promptfoo"]


def installed(name, pins, install):
    """Returns the folder of a complete installation; makes the folder with `install` if it is not complete."""
    digest = hashlib.sha256(pins + sys.version.encode()).hexdigest()[:16]
    folder = CACHE / f"{name}-{digest}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        install(folder)
        (folder / "complete").touch()
    return folder


def do(*command, **more):
    subprocess.run([str(part) for part in command], check=True, **more)


def python_command(name, url, model):
    script, requirements = PYTHON[name]
    pins = HERE / "requirements" / f"{requirements}.txt"

    def install(folder):
        do(sys.executable, "-m", "venv", folder)
        do(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", pins)

    folder = installed(requirements, pins.read_bytes(), install)
    return [folder / "bin" / "python", HERE / script, url, model], None


def node_folder(name):
    """Returns a folder with the packages of `name`/package.json and the other files of the folder `name`."""
    source = HERE / name
    pins = b"".join((source / file).read_bytes() for file in ("package.json", "package-lock.json")
                    if (source / file).exists())

    def install(folder):
        for file in source.glob("package*.json"):
            shutil.copy(file, folder)
        do("npm", "ci" if (folder / "package-lock.json").exists() else "install", "--silent", cwd=folder)

    folder = installed(name, pins, install)
    for file in source.iterdir():
        if not file.name.startswith("package"):
            shutil.copy(file, folder)
    return folder


def node_command(name, url, model):
    return ["node", node_folder("node") / NODE[name], url, model], None


def promptfoo_command(url, model):
    folder = node_folder("promptfoo")
    environment = {
        "TIERCEL_URL": url, "TIERCEL_MODEL": model, "PROMPTFOO_CONFIG_DIR": str(folder / "state"),
        "PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1",
        "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    }
    program = folder / "node_modules" / ".bin" / "promptfoo"
    return [program, "eval", "-c", folder / "promptfooconfig.yaml", "--no-cache", "--no-table"], environment


def command_of(name, url, model):
    if name in PYTHON:
        return python_command(name, url, model)
    return node_command(name, url, model) if name in NODE else promptfoo_command(url, model)


def run(name, url, model):
    """Runs a client, prints the client's result, and returns whether the client passed."""
    command, environment = command_of(name, url, model)
    started = time.monotonic()
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=RUN_S,
                              env={**os.environ, **(environment or {})})
        code, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        code, output = 1, f"{late}"
    said = [line for line in output.splitlines() if line.startswith("PASS ")]
    if name == "promptfoo" and code == 0:
        pins = json.loads((HERE / "promptfoo" / "package.json").read_text())["dependencies"]
        said = [f"PASS promptfoo {pins['promptfoo']}: an answer, a tool call and structured output"]
    passed = code == 0 and said
    print("\n".join(said) if passed else f"FAIL {name}\n{output}", f" ({time.monotonic() - started:.1f} s)", sep="", flush=True)
    return bool(passed)


class Server:
    """Server on the mock device with the replies of this folder, as a child process on a free port."""

    def __init__(self, program):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{one.getsockname()[1]}"
        self.log = tempfile.TemporaryFile("w+")
        command = [program, "serve", "--listen", address, "--device", f"mock:{HERE / 'profile.toml'}",
                   "--replies", HERE / "replies.toml"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.url = f"http://{address}/v1"
        until = time.monotonic() + START_S
        while True:
            time.sleep(0.1)
            if self.process.poll() is not None or time.monotonic() > until:
                self.log.seek(0)
                sys.exit(f"the server does not start:\n{self.log.read()}")
            try:
                return self.models()
            except OSError:
                pass

    def models(self):
        urllib.request.urlopen(f"{self.url}/models", timeout=5).close()

    def end(self):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--program")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(ALL))
    asked = parser.parse_args()
    unknown = set(asked.clients) - set(ALL)
    if unknown or bool(asked.url) == bool(asked.program):
        parser.error(f"unknown clients: {unknown}" if unknown else "give --url or --program")
    names = asked.clients or [name for name in ALL if not (asked.fast and name in SLOW)]
    if not shutil.which("npm"):
        print("NOT RUN, because there is no npm:", ", ".join(name for name in names if name not in PYTHON))
        names = [name for name in names if name in PYTHON]
    server = Server(asked.program) if asked.program else None
    url = server.url if server else asked.url
    try:
        with urllib.request.urlopen(f"{url}/models", timeout=30) as answer:
            model = json.load(answer)["data"][0]["id"]
        failed = [name for name in names if not run(name, url, model)]
    finally:
        if server:
            server.end()
    print(f"{len(names) - len(failed)} of {len(names)} clients pass", f"; failed: {', '.join(failed)}" if failed else "", sep="")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
