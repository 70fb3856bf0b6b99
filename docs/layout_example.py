#!/usr/bin/env python3
"""Checks the worked example of layout.md, or makes a new one from a running server.

    docs/layout_example.py              parse the dump in layout.md and verify everything that it claims
    docs/layout_example.py dump PID     print such a dump of the region of kv-server PID (key: apple)
    docs/layout_example.py tcp HOST:PORT  verify the same in a region that is read over TCP

Written from the pictures in layout.md alone, with a hash function of its own, so that it is a second opinion on the
Rust code and not a copy of it. Needs nothing but Python 3.8.
"""
import mmap
import os
import re
import socket
import struct
import sys

MASK = (1 << 64) - 1
KEY = b"apple"
VALUE = b"a red or green fruit"
LINE_BYTES, SEGMENT_BYTES, HOMES = 64, 2 << 20, 30719

# ---------------------------------------------------------------------------------------------------------------
# XXH3, 64 bits, for inputs of 4 to 8 and of 17 to 128 bytes: all that the example needs. From the specification in
# xxHash's doc/xxhash_spec.md.
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b532ea371644897a20df94e3819ef46a9deacd8a8"
    "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb17"
    "0ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def u64(data, at):
    return struct.unpack_from("<Q", data, at)[0]


def u32(data, at):
    return struct.unpack_from("<I", data, at)[0]


def fold(a, b):
    product = a * b
    return (product & MASK) ^ (product >> 64)


def avalanche(h):
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & MASK
    return h ^ h >> 32


def mix16(data, at, secret, seed):
    low = u64(data, at) ^ (u64(SECRET, secret) + seed & MASK)
    high = u64(data, at + 8) ^ (u64(SECRET, secret + 8) - seed & MASK)
    return fold(low, high)


def rotate(x, n):
    return (x << n | x >> (64 - n)) & MASK


def xxh3(data, seed=0):
    n = len(data)
    if 4 <= n <= 8:
        swapped = struct.unpack(">I", struct.pack("<I", seed & 0xFFFFFFFF))[0]
        seed ^= swapped << 32
        both = u32(data, n - 4) + (u32(data, 0) << 32)
        h = both ^ ((u64(SECRET, 8) ^ u64(SECRET, 16)) - seed & MASK)
        h ^= rotate(h, 49) ^ rotate(h, 24)
        h = h * 0x9FB21C651E98DF25 & MASK
        h ^= (h >> 35) + n
        h = h * 0x9FB21C651E98DF25 & MASK
        return h ^ h >> 28
    assert 17 <= n <= 128, "the example needs no other lengths"
    h = n * 0x9E3779B185EBCA87 & MASK
    for i in reversed(range((n - 1) // 32 + 1)):
        h += mix16(data, 16 * i, 32 * i, seed) + mix16(data, n - 16 * (i + 1), 32 * i + 16, seed)
    return avalanche(h & MASK)


# ---------------------------------------------------------------------------------------------------------------
def locate(read):
    """Follows the way of a GET. `read(offset, length)` brings bytes of the region."""
    words = struct.unpack("<64Q", read(0, 512))
    table_id, seed, directory, depth = words[3], words[4], words[6], words[10]
    h = xxh3(KEY, seed)
    segment = u64(read(directory * SEGMENT_BYTES + 8 * (h & (1 << depth) - 1), 8), 0)
    home = (h >> 24 & 0xFFFFFF) * HOMES >> 24
    line = segment * SEGMENT_BYTES + home * LINE_BYTES
    fingerprint = max(h >> 48, 1)
    window = read(line, 128)
    for i in [*range(1, 8), *range(9, 16)]:
        slot = u64(window, 8 * i)
        if slot >> 48 == fingerprint:
            place, span = slot & (1 << 40) - 1, slot >> 40 & 0xFF
            return dict(hash=h, depth=depth, segment=segment, home=home, line=line, word=i, slot=slot, place=place,
                        span=span, block=16 * place, directory=directory, table_id=table_id)
    sys.exit(f"no slot with fingerprint {fingerprint:#x} in the window at {line:#x}")


def check(read):
    at = locate(read)
    magic, version = read(0, 8), u64(read(8, 8), 0)
    assert (magic, version) == (b"KVONESID", 2), (magic, version)
    header = u64(read(at["line"], 8), 0)
    assert header & 0x3F == at["depth"] and header >> 8 & 0xFFFFFF == at["hash"] & (1 << at["depth"]) - 1, hex(header)
    assert 1 <= at["span"] <= 16, "the span of a small block is its granules"
    block = read(at["block"], 16 * at["span"])
    word0, found, lengths = struct.unpack_from("<3Q", block)
    value_bytes, key_bytes, flags = lengths & 0xFFFFFFFF, lengths >> 32 & 0xFFFF, lengths >> 48
    end = 24 + key_bytes + value_bytes
    assert word0 >> 63 == 0 and flags == 0 and end <= len(block), (hex(word0), hex(lengths))
    assert block[24:24 + key_bytes] == KEY and block[24 + key_bytes:end] == VALUE, block
    inner = xxh3(block[16:end])
    product = (inner ^ word0) * (at["table_id"] ^ at["place"] ^ 0x9E3779B97F4A7C15)
    outer = product >> 64 ^ product & MASK
    assert outer == found, f"check is {found:#018x}, computed {outer:#018x}"
    at.update(version=word0, inner=inner, check=found)
    return at


def report(at):
    for name in ["hash", "table_id", "depth", "directory", "segment", "home", "line", "word", "slot", "place", "span",
                 "block", "version", "inner", "check"]:
        print(f"{name:<10} {at[name]:#018x}  {at[name]}")


def hexdump(read, at, length):
    for start in range(at, at + length, 16):
        data = read(start, 16)
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in data)
        print(f"{start:08x}  {' '.join(f'{b:02x}' for b in data[:8])}  {' '.join(f'{b:02x}' for b in data[8:])}  |{text}|")


def from_server(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if "memfd:kv-region" in os.readlink(path):
            region = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
            return lambda at, length: region[at:at + length]
    sys.exit(f"process {pid} has no region; is it kv-server?")


def from_network(address):
    host, port = address.rsplit(":", 1)
    stream = socket.create_connection((host.strip("[]"), int(port)), timeout=10)

    def receive(length):
        data = b""
        while len(data) < length:
            part = stream.recv(length - len(data))
            assert part, "the server closed the connection"
            data += part
        return data

    wanted_tcp = 1
    hello = b"KVHELLO\n" + struct.pack("<2I", 5, wanted_tcp)
    stream.sendall(struct.pack("<I", len(hello)) + hello)
    answer = receive(u32(receive(4), 0))
    assert answer[:8] == b"KVANSWR\n" and len(answer) == 96, answer
    assert (u32(answer, 12), u64(answer, 16)) == (0, 0), "not welcome"
    tokens = iter(range(7, MASK))

    def read(at, length):
        first, words, token = at // 8, (at % 8 + length + 7) // 8, next(tokens)
        stream.sendall(struct.pack("<2I3Q", 24, 1, token, first, words))
        body_bytes, kind, found = struct.unpack("<2IQ", receive(16))
        assert (body_bytes, kind, found) == (8 + 8 * words, 4, token), (body_bytes, kind, found)
        return receive(8 * words)[at % 8:at % 8 + length]

    return read


def from_document():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "layout.md")
    lines = {}
    with open(here, encoding="utf-8") as text:
        for row in text:
            found = re.match(r"([0-9a-f]{8})  ((?:[0-9a-f]{2}  ?){16})\|", row)
            if found:
                lines[int(found[1], 16)] = bytes.fromhex(found[2])

    def read(at, length):
        first = at & ~15
        data = b"".join(lines.get(i, bytes(16)) for i in range(first, at + length, 16))
        return data[at - first:at - first + length]

    return read


if sys.argv[1:2] == ["dump"] and len(sys.argv) == 3:
    region = from_server(sys.argv[2])
    found = check(region)
    hexdump(region, 0, 96)
    hexdump(region, found["directory"] * SEGMENT_BYTES, 16)
    hexdump(region, found["line"], 128)
    hexdump(region, found["block"], 16 * found["span"])
elif sys.argv[1:2] == ["tcp"] and len(sys.argv) == 3:
    found = check(from_network(sys.argv[2]))
    print("the region holds the key, and every hash in it is right")
elif len(sys.argv) == 1:
    found = check(from_document())
    print("the dump in layout.md holds the key, and every hash in it is right")
else:
    sys.exit(__doc__)
report(found)
