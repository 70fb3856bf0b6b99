#!/usr/bin/env python3
"""Fills kv-server, Redis and memcached with the same records, one after the other, and prints bytes per key at many counts.

usage: memory_compare.py DIRECTORY RECORDS FROM BIN KV_PID

DIRECTORY has the sockets: kv.sock of an empty kv-server with the process KV_PID; redis-server and memcached are started and
ended here. Each is filled up to RECORDS; from FROM records on its bytes are compared at every hundredth of RECORDS.

What counts as the bytes of each:
- kv-server: the segments of index and of blocks, whole ones, superblock and directory, and the process's private memory;
- Redis: used_memory, what it has asked its allocator for (not what that wastes);
- memcached: the pages of its slabs, whole ones, and its hash table.
The bytes that each process has of the machine are printed, too, at the end of its filling.
"""

import bisect
import json
import os
import socket
import subprocess
import sys
import time

KEY = b"user%012d"
VALUE = b"0123456789abcdef" * 2
BATCH = 10_000
SEGMENT_BYTES = 2 << 20
PAGE_BYTES = 4096


class Line:
    """A connection over a Unix socket, to a server that may not listen yet."""

    def __init__(self, path):
        deadline = time.monotonic() + 30
        while True:
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(path)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.socket.settimeout(120)

    def ask(self, request, ends):
        """Sends a request, and returns what comes until `ends` of what came is true."""
        self.socket.sendall(request)
        found = bytearray()
        while not ends(found):
            part = self.socket.recv(1 << 20)
            if not part:
                raise SystemExit("the server has closed the connection")
            found += part
        return bytes(found)


def is_whole_bulk(found):
    """True if `found` is all of a Redis reply that says its length first."""
    head, _, body = found.partition(b"\r\n")
    return len(body) > 0 and len(body) == int(head[1:]) + 2


class Redis:
    name = "redis"
    command = ["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]

    def __init__(self, path):
        self.line = Line(path)

    def store(self, first, last):
        one = b"*3\r\n$3\r\nSET\r\n$16\r\n" + KEY + b"\r\n$32\r\n" + VALUE + b"\r\n"
        replies = b"+OK\r\n" * (last - first)
        request = b"".join([one % number for number in range(first, last)])
        if self.line.ask(request, lambda found: len(found) >= len(replies)) != replies:
            raise SystemExit("redis-server has refused a record")

    def sample(self):
        info = self.line.ask(b"INFO memory\r\n", is_whole_bulk)
        fields = dict(line.split(":", 1) for line in info.decode().split("\r\n") if ":" in line)
        keys = self.line.ask(b"DBSIZE\r\n", lambda found: found.endswith(b"\r\n"))
        return int(keys[1:]), int(fields["used_memory"])


class Memcached:
    name = "memcached"
    command = ["memcached", "-u", "root", "-m", str(1 << 20), "-t", "1", "-s"]

    def __init__(self, path):
        self.line = Line(path)

    def store(self, first, last):
        one = b"set " + KEY + b" 0 0 32 noreply\r\n" + VALUE + b"\r\n"
        self.line.socket.sendall(b"".join([one % number for number in range(first, last)]))

    def stats(self, which):
        text = self.line.ask(which, lambda found: found.endswith(b"END\r\n")).decode()
        return {words[1]: words[2] for words in map(str.split, text.splitlines()) if len(words) == 3}

    def sample(self):
        stats, slabs = self.stats(b"stats\r\n"), self.stats(b"stats slabs\r\n")
        if stats["evictions"] != "0":
            raise SystemExit("memcached has evicted records")
        return int(stats["curr_items"]), int(slabs["total_malloced"]) + int(stats["hash_bytes"])


def resident(pid):
    """Bytes of a process in memory: of its own, and shared ones."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return tuple(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def fill_peer(peer, directory, records):
    """Samples of (keys, bytes) while a peer is filled."""
    path = f"{directory}/{peer.name}.sock"
    process = subprocess.Popen([*peer.command, path], stdout=subprocess.DEVNULL)
    try:
        client, samples = peer(path), []
        sampled = 0
        for first in range(0, records, BATCH):
            last = min(first + BATCH, records)
            client.store(first, last)
            if last - sampled >= records // 200 or last == records:
                samples.append(client.sample())
                sampled = last
        if samples[-1][0] != records:
            raise SystemExit(f"{peer.name} has {samples[-1][0]} records of {records}")
        anon, _ = resident(process.pid)
        print(f"{peer.name}: {anon / records:.1f} bytes per key resident at the end", flush=True)
        return samples
    finally:
        process.terminate()
        process.wait()


def kv_stat(binary, url):
    asked = subprocess.run([f"{binary}/kv", "stat", "--json", "--url", url], check=True, stdout=subprocess.PIPE)
    return json.loads(asked.stdout)["server"]


def fill_kv(binary, directory, records, pid):
    """The same of kv-server, filled by kv-bench; each sample ends with what the keys' blocks and the index take of it."""
    url = f"{directory}/kv.sock"
    load = [f"{binary}/kv-bench", "load", "--recordcount", str(records), "--key-size", "16", "--value-size", "32"]
    load += ["--depth", "64", "--url", url]
    process, samples, ended = subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), [], False
    try:
        while not ended:
            ended = process.poll() is not None
            stat = kv_stat(binary, url)
            segments, counters = stat["segments"], stat["counters"]
            used = (segments["system"] + segments["index"] + segments["blocks"]) * SEGMENT_BYTES
            private, _ = resident(pid)
            samples.append((counters["keys"], used + private, segments, private, counters))
            time.sleep(records / 1e8 / 2)
    finally:
        process.kill()
        process.wait()
    if process.returncode or samples[-1][0] != records:
        raise SystemExit(f"kv-server has {samples[-1][0]} records of {records}, kv-bench has ended with {process.returncode}")
    return samples


def bytes_at(samples, keys):
    """Bytes at a count of keys, between those of the samples around it."""
    after = bisect.bisect_left(samples, (keys,))
    if after == 0 or samples[after][0] == keys:
        return samples[after][1]
    (k0, b0), (k1, b1) = samples[after - 1][:2], samples[after][:2]
    return b0 + (b1 - b0) * (keys - k0) / (k1 - k0)


def show_kv(samples, start, records):
    print("\nkv-server: bytes per key\nkeys index blocks system private total index-fill-% overflow-lines-used-%")
    shown = 0
    for keys, total, segments, private, counters in samples:
        if keys < start or (keys < shown + records // 50 and (keys < records or shown == records)):
            continue
        shown = keys
        kinds = [segments[kind] * SEGMENT_BYTES / keys for kind in ("index", "blocks", "system")]
        slots, lines = segments["index"] * 32_768 * 7, segments["index"] * 2048
        print(
            f"{keys:>11} {kinds[0]:6.2f} {kinds[1]:6.2f} {kinds[2]:5.2f} {private / keys:5.2f} {total / keys:7.2f}"
            f" {100 * keys / slots:6.1f} {100 * counters['overflow_lines'] / lines:6.1f}"
        )


def compare(found, start, records):
    print("\nbytes per key\n       keys      kv   redis memcached kv/smallest")
    step, rows = records // 100, []
    for keys in range(max(start, step), records + 1, step):
        each = {name: bytes_at(samples, keys) / keys for name, samples in found.items()}
        rows.append((each["kv"] / min(each["redis"], each["memcached"]), keys, each))
    for ratio, keys, each in rows:
        print(f"{keys:>11} {each['kv']:7.2f} {each['redis']:7.2f} {each['memcached']:9.2f} {ratio:11.3f}")
    print(f"\nkv/smallest: mean {sum(row[0] for row in rows) / len(rows):.3f}, worst {max(rows)[0]:.3f} at {max(rows)[1]} keys")
    for name in found:
        values = [each[name] for _, _, each in rows]
        print(f"{name}: mean {sum(values) / len(values):.2f}, worst {max(values):.2f}, best {min(values):.2f} bytes per key")


def main():
    if len(sys.argv) != 6:
        raise SystemExit(__doc__)
    directory, records, start, binary, pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    kv = fill_kv(binary, directory, records, pid)
    show_kv(kv, start, records)
    anon, shared = resident(pid)
    print(f"kv: {(anon + shared) / records:.1f} bytes per key resident at the end", flush=True)
    os.kill(pid, 15)
    while os.path.exists(f"/proc/{pid}/fd/0"):
        time.sleep(0.1)
    found = {"kv": [sample[:2] for sample in kv]}
    for peer in (Redis, Memcached):
        found[peer.name] = fill_peer(peer, directory, records)
    compare(found, start, records)


main()
