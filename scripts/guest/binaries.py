#!/usr/bin/env python3
"""Reads what `cargo test --no-run --message-format=json` says; prints the integration test binaries whose name begins
with the argument, one a line: name, the directory that cargo would run it in, path; with tabs between."""

import json
import os
import sys

for line in sys.stdin:
    message = json.loads(line)
    if message["reason"] != "compiler-artifact" or not message["executable"]:
        continue
    target = message["target"]
    if target["kind"] == ["test"] and target["name"].startswith(sys.argv[1]):
        print(target["name"], os.path.dirname(message["manifest_path"]), message["executable"], sep="\t")
