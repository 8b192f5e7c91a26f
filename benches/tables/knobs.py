"""Builds a copy of the program that reads its constants once from the environment, as `ABLATE_<FILE>_<NAME>`."""

import os
import re
import shutil
import subprocess
import sys

from tables.runs import ROOT

COPY = ROOT / "target/ablation/tree"
POLICY = "actors/policy/src"
READER = '''//! Constants from the environment, for an ablation.

/// The value of `name` in the environment, or `default`.
macro_rules! knob {
    ($name:literal, $default:expr) => {{
        static VALUE: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
        *VALUE.get_or_init(|| match std::env::var($name) {
            Ok(text) => text.parse().expect("a number"),
            Err(_) => ($default) as f64,
        })
    }};
}
'''


def module(file):
    """Returns the name of the module in the file, such as `slack` in `budget/slack` and `memory` in `memory/mod`."""
    return file.removesuffix("/mod").rsplit("/", 1)[-1]


def variable(file, name):
    """Returns the name of the environment variable of a constant."""
    return f"ABLATE_{module(file)}_{name}".upper()


def rewrite_constant(text, file, name):
    """Turns a constant into a function that reads the environment. An array is multiplied by the value read, 1 by
    default."""
    pattern = rf"^((?:pub\(crate\) )?)const {name}: ([^=]+) = (.+?);"
    found = re.search(pattern, text, re.M)
    if not found:
        sys.exit(f"{POLICY}/{file}.rs has no constant {name}: mend benches/tables/variants.py")
    public, kind, value = found.groups()
    read = f'knob!("{variable(file, name)}", {value}) as {kind}'
    if kind.startswith("["):
        read = f'{value}.map(|value: f64| value * knob!("{variable(file, name)}", 1.0))'
    function = f"#[allow(non_snake_case, reason = \"it was a constant\")]\n{public}fn {name}() -> {kind} {{\n    {read}\n}}"
    before, after = text[:found.start()], text[found.end():]
    return call_everywhere(before, name) + function + call_everywhere(after, name)


def call_everywhere(text, name):
    use = re.compile(rf"(?<![\w:])((?:\w+::)*){name}\b(?!\()")
    lines = [line if re.match(r"\s*(//|use )", line) else use.sub(rf"\1{name}()", line) for line in text.split("\n")]
    return "\n".join(lines)


def rewrite_text(text, file, name, old, new):
    """Replaces `old` by `new`, in which {value:1.5} stands for the value from the environment, 1.5 by default."""
    if text.count(old) != 1:
        sys.exit(f"{POLICY}/{file}.rs has not once `{old}`: mend benches/tables/variants.py")
    read = lambda found: f'knob!("{variable(file, name)}", {found.group(1)})'
    return text.replace(old, re.sub(r"\{value:([^}]+)\}", read, new))


def value_of(file, name):
    """Returns the value of a constant in the source; 1 for an array, because an array is multiplied by the value."""
    text = (ROOT / POLICY / f"{file}.rs").read_text()
    found = re.search(rf"const {name}: ([^=]+) = (.+?);", text)
    if not found:
        sys.exit(f"{POLICY}/{file}.rs has no constant {name}: mend benches/tables/variants.py")
    kind, value = found.groups()
    if kind.startswith("["):
        return 1.0
    words = re.sub(r"[A-Z][A-Z_0-9]+", lambda other: str(value_of(file, other.group())), value)
    return float(eval(words.replace("_", "")))


def copy_tree():
    """Copies the files that git tracks. Equal files keep their modification times, so that cargo rebuilds little.
    Returns the names of the policy's files, which are not copied here."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, COPY / name
        if name.startswith(POLICY) or not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copyfile(source, target)
    return [name for name in listed.stdout.split("\0") if name.startswith(POLICY)]


def build(constants, places):
    """Builds the program and returns its path. `constants` are (file, name), `places` are (file, name, old, new)."""
    texts = {name: (ROOT / name).read_text() for name in copy_tree()}
    for file, name in constants:
        path = f"{POLICY}/{file}.rs"
        if path not in texts:
            sys.exit(f"{path} is not there: mend benches/tables/variants.py")
        texts[path] = rewrite_constant(texts[path], file, name)
        for other, text in texts.items():
            if re.search(rf"use .*\b{module(file)}::(?:\{{[^}}]*)?{name}\b", text):
                texts[other] = call_everywhere(text, name)
    for file, name, old, new in places:
        path = f"{POLICY}/{file}.rs"
        texts[path] = rewrite_text(texts[path], file, name, old, new)
    library = f"{POLICY}/lib.rs"
    texts[library] = re.sub(r"\n(pub )?mod ", r"\n#[macro_use]\nmod knob;\n\1mod ", texts[library], count=1)
    texts[f"{POLICY}/knob.rs"] = READER
    for name, text in texts.items():
        target = COPY / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text() != text:
            target.write_text(text)
    # Ordinary builds have another folder. In a common folder Cargo would take the crates of this copy for those of the
    # project, because both have the same names and versions.
    folder = str(ROOT / "target/ablation/build")
    command = ["cargo", "build", "--release", "--quiet", "--bin", "tiercel"]
    done = subprocess.run(command, cwd=COPY, env=os.environ | {"CARGO_TARGET_DIR": folder})
    if done.returncode:
        sys.exit("the program with constants from the environment does not build")
    return f"{folder}/release/tiercel"
