#!/usr/bin/env python3
"""Fills kv-server, Redis or memcached with records, and compares bytes per key at many counts of them.

usage: memory_compare.py fill kv|redis|memcached DIRECTORY RECORDS BIN
       memory_compare.py compare DIRECTORY RECORDS FROM

DIRECTORY gets what was found, NAME.json. It has the socket of an empty kv-server, kv.sock; redis-server and memcached are
started and ended here. BIN has kv and kv-bench. Compared is from FROM records on, at every hundredth of RECORDS.

What counts as the bytes of each:
- kv-server: the segments of index and of blocks, whole ones, superblock and directory, and the process's private memory;
- Redis: used_memory, what it has asked its allocator for (not what that wastes);
- memcached: the pages of its slabs, whole ones, and its hash table.
"""

import bisect
import json
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
    # Without the threads that look for what is over or old: they hold its locks while it is filled.
    command = ["memcached", "-u", "root", "-m", str(1 << 20), "-t", "1", "-o", "no_lru_crawler,no_lru_maintainer"]
    command += ["-R", "1000", "-s"]

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


def private_bytes(pid):
    """Bytes that a process has of the machine for itself alone."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["RssAnon"].split()[0]) << 10


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
        resident = private_bytes(process.pid)
        print(f"{peer.name}: {resident / records:.1f} bytes per key resident at the end", flush=True)
        return samples
    finally:
        process.terminate()
        process.wait()


def kv_stat(binary, url):
    """What the server publishes, or none if it has not answered in time, on a busy machine."""
    asked = subprocess.run([f"{binary}/kv", "stat", "--json", "--url", url], check=False, stdout=subprocess.PIPE)
    return json.loads(asked.stdout)["server"] if asked.returncode == 0 else None


def fill_kv(binary, directory, records):
    """The same of kv-server, filled by kv-bench; each sample ends with what the keys' blocks and the index take of it."""
    url = f"{directory}/kv.sock"
    load = [f"{binary}/kv-bench", "load", "--recordcount", str(records), "--key-size", "16", "--value-size", "32"]
    load += ["--threads", "2", "--depth", "64", "--url", url]
    process, samples, ended = subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), [], False
    try:
        while not ended:
            ended = process.poll() is not None
            stat = kv_stat(binary, url)
            if stat is None:
                ended = False
                continue
            segments, counters = stat["segments"], stat["counters"]
            used = (segments["system"] + segments["index"] + segments["blocks"]) * SEGMENT_BYTES
            private = private_bytes(stat["server_pid"])
            samples.append((counters["keys"], used + private, segments, private, counters))
            time.sleep(records / 1e8 / 2)
    finally:
        process.kill()
        process.wait()
    missing = records - samples[-1][0]
    if missing > records // 1000:
        raise SystemExit(f"kv-server lacks {missing} of {records} records, kv-bench has ended with {process.returncode}")
    if missing:
        print(f"kv-server lacks {missing} records: they were refused, or not stored in time")
    return samples


def bytes_at(samples, keys):
    """Bytes at a count of keys, between those of the samples around it."""
    after = min(bisect.bisect_left(samples, [keys]), len(samples) - 1)
    if after == 0 or samples[after][0] <= keys:
        return samples[after][1]
    (k0, b0), (k1, b1) = samples[after - 1][:2], samples[after][:2]
    return b0 + (b1 - b0) * (keys - k0) / (k1 - k0)


def show_kv(samples, start, records):
    print("kv-server: bytes per key by kind, and percent in use of index slots and of overflow lines")
    print("       keys  index blocks system private   total  slots  lines")
    shown = 0
    for keys, total, segments, private, counters in samples:
        if keys < max(start, shown + records // 50):
            continue
        shown = keys
        kinds = [segments[kind] * SEGMENT_BYTES / keys for kind in ("index", "blocks", "system")]
        lines = segments["index"] * 2048
        slots = 7 * (segments["index"] * 30_720 + lines)
        shares = [100 * keys / slots, 100 * counters["overflow_lines"] / lines]
        each = [*kinds, private / keys, total / keys, *shares]
        print(f"{keys:>11} {each[0]:6.2f} {each[1]:6.2f} {each[2]:6.2f} {each[3]:7.2f} {each[4]:7.2f} {each[5]:6.1f} {each[6]:6.1f}")
    print()


def compare(found, start, records):
    print("bytes per key\n       keys      kv   redis memcached kv/smallest")
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
    match sys.argv[1:]:
        case ["fill", name, directory, records, binary]:
            records = int(records)
            peers = {peer.name: peer for peer in (Redis, Memcached)}
            is_peer = name in peers
            samples = fill_peer(peers[name], directory, records) if is_peer else fill_kv(binary, directory, records)
            with open(f"{directory}/{name}.json", "w", encoding="ascii") as file:
                json.dump(samples, file)
        case ["compare", directory, records, start]:
            found = {}
            for name in ("kv", "redis", "memcached"):
                with open(f"{directory}/{name}.json", encoding="ascii") as file:
                    found[name] = json.load(file)
            show_kv(found["kv"], int(start), int(records))
            compare({name: [sample[:2] for sample in samples] for name, samples in found.items()}, int(start), int(records))
        case _:
            raise SystemExit(__doc__)


main()
