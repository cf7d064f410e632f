#!/usr/bin/python3
"""Clients of `isolane export` for nbd.sh: libnbd, and raw connections that break the rules.

usage: nbd_clients.py CHECK SOCKET [ARGUMENT...]
"""

import os
import socket
import struct
import sys

import nbd

OPTION_MAGIC, REPLY_MAGIC = b"IHAVEOPT", 0x0003E889045565A9
LIST, STARTTLS, INFO, GO, STRUCTURED_REPLY, LIST_META, SET_META = 3, 5, 6, 7, 8, 9, 10
ACK, UNSUP, INVALID, UNKNOWN, TOO_BIG = 1, (1 << 31) + 1, (1 << 31) + 3, (1 << 31) + 6, (1 << 31) + 9
READ, WRITE, DISC, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)
EINVAL, ENOSPC = 22, 28
MAX_PAYLOAD = 32 << 20


class Raw:
    """A connection without a library."""

    def __init__(self, path, flags=3):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(path)
        assert self.take(18) == b"NBDMAGICIHAVEOPT\0\3"
        self.send(struct.pack(">I", flags))

    def send(self, data):
        self.socket.sendall(data)

    def take(self, length):
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            if not part:
                raise EOFError(data)
            data += part
        return data

    def is_closed(self):
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def option(self, option, data=b""):
        """Returns the code of the last reply; the others are successes."""
        self.send(OPTION_MAGIC + struct.pack(">II", option, len(data)) + data)
        while True:
            magic, echo, code, length = struct.unpack(">QIII", self.take(20))
            assert magic == REPLY_MAGIC and echo == option
            text = self.take(length)
            if code == ACK or code >> 31:
                assert code == ACK or text.decode(), "no message"
                return code

    def go(self, structured=False):
        if structured:
            assert self.option(STRUCTURED_REPLY) == ACK
        assert self.option(GO, select("")) == ACK
        self.structured = structured

    def request(self, code, offset=0, length=0, flags=0, data=b""):
        """Returns the error of a request that gets no data."""
        self.send(struct.pack(">IHHQQI", 0x25609513, flags, code, 77, offset, length) + data)
        magic = self.take(4)
        if magic == b"\x67\x44\x66\x98":
            error, cookie = struct.unpack(">IQ", self.take(12))
            assert cookie == 77
            return error
        assert magic == b"\x66\x8e\x33\xef" and self.structured
        flags, kind, cookie, length = struct.unpack(">HHQI", self.take(16))
        assert (flags, cookie) == (1, 77)
        body = self.take(length)
        if kind != 0x8001:
            return 0
        error, message = struct.unpack(">IH", body[:6])
        assert body[6:].decode() and message == length - 6
        return error


def text(value):
    return struct.pack(">I", len(value)) + value.encode()


def select(name, *kinds):
    return text(name) + struct.pack(f">H{len(kinds)}H", len(kinds), *kinds)


def contexts(name, *queries):
    return text(name) + struct.pack(">I", len(queries)) + b"".join(map(text, queries))


def connect(path, **settings):
    handle = nbd.NBD()
    # Wrong requests reach the server.
    handle.set_strict_mode(0)
    handle.add_meta_context("base:allocation")
    for name, value in settings.items():
        getattr(handle, f"set_{name}")(value)
    handle.connect_unix(path)
    return handle


def error_of(call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        return error.errnum
    return 0


def options(path):
    """Each wrong option gets an error with a message, and the connection continues."""
    raw = Raw(path)
    assert raw.option(SET_META, contexts("", "base:allocation")) == INVALID, "no structured replies yet"
    for option, data, code in [
        (STARTTLS, b"", UNSUP), (4, b"", UNSUP), (11, b"", UNSUP), (12345, b"data", UNSUP),
        (LIST, b"data", INVALID), (STRUCTURED_REPLY, b"data", INVALID), (STRUCTURED_REPLY, b"", ACK),
        (GO, b"", INVALID), (GO, b"\xff\xff\xff\xff", INVALID), (INFO, select("") + b"more", INVALID),
        (GO, b"\0\0\0\0\xff\xff", INVALID), (GO, select("other"), UNKNOWN), (INFO, bytes(100_000), TOO_BIG),
        (SET_META, b"", INVALID), (SET_META, b"\0\0\0\0\xff\xff\xff\xff", INVALID),
        (SET_META, contexts("", "nothing"), INVALID), (SET_META, contexts("other", "base:allocation"), UNKNOWN),
        (99, bytes(1 << 20), UNSUP), (SET_META, contexts("", "x-other:y"), ACK), (LIST_META, contexts(""), ACK),
        (LIST, b"", ACK), (INFO, select("", 0, 1, 2, 3, 4), ACK), (GO, select("", 3), ACK),
    ]:
        found = raw.option(option, data)
        assert found == code, f"option {option} {data[:20]}: {found:#x}, not {code:#x}"
    raw.structured = True
    assert raw.request(READ, 0, 512) == 0


def requests(path):
    """Each wrong request gets an error, and the connection continues."""
    end = connect(path).get_size()
    for structured in [False, True]:
        raw = Raw(path)
        raw.go(structured)
        for error, code, offset, length, flags in [
            (EINVAL, 99, 0, 512, 0), (EINVAL, CACHE, 0, 512, 0), (EINVAL, READ, 1, 512, 0), (EINVAL, READ, 0, 7, 0),
            (EINVAL, READ, end, 512, 0), (EINVAL, READ, 2**64 - 512, 512, 0), (EINVAL, READ, 0, MAX_PAYLOAD + 512, 0),
            (EINVAL, READ, 0, 512, 0x8000), (EINVAL, WRITE, 1, 512, 0), (EINVAL, WRITE, 0, 7, 0),
            (ENOSPC, WRITE, end, 512, 0), (ENOSPC, WRITE, end - 512, 1024, 0), (EINVAL, WRITE, 0, 512, 4),
            (EINVAL, WRITE, 0, MAX_PAYLOAD + 512, 0), (ENOSPC, WRITE_ZEROES, end, 512, 0), (EINVAL, TRIM, end, 512, 0),
            (EINVAL, FLUSH, 0, 512, 0), (EINVAL, BLOCK_STATUS, 0, 512, 0), (0, WRITE, 0, 512, 0),
        ]:
            found = raw.request(code, offset, length, flags, bytes(length if code == WRITE else 0))
            assert found == error, f"command {code} {offset} {length} {flags}: {found}, not {error}"


def hostile(path):
    """Connections that break the framing end; another one continues."""
    good = connect(path)
    good.pwrite(b"g" * 4096, 4096)
    def check():
        assert good.pread(4096, 4096) == b"g" * 4096
    for flags in [4, 0xFFFFFFFF]:
        assert Raw(path, flags).is_closed()
    for garbage in [b"GET / HTTP/1.1\r\n\r\n", bytes(16), b"IHAVEOPT\0\0\0\1\0\0\0\5wrong", b"IHAVEOPT\0\0\0\1\xff\xff\xff\xff"]:
        raw = Raw(path)
        raw.send(garbage)
        assert raw.is_closed(), garbage
        check()
    raw = Raw(path)
    raw.go()
    raw.send(bytes(28))
    assert raw.is_closed()
    # Hang up in the middle of everything.
    for part in [b"", b"IHAVE", b"IHAVEOPT\0\0\0\7\0\0\0\x10short", b"IHAVEOPT\0\0\x99\7\xff\xff\xff\xffshort"]:
        raw = Raw(path)
        raw.send(part)
        raw.socket.close()
    for length in [512, MAX_PAYLOAD]:
        raw = Raw(path)
        raw.go()
        raw.send(struct.pack(">IHHQQI", 0x25609513, 0, WRITE, 1, 4096, length) + b"x" * 100)
        raw.socket.close()
        check()
    # Requests whose replies have no reader, more than fit into a socket.
    raws = [Raw(path) for _ in range(4)]
    for raw in raws:
        raw.go()
        raw.send(struct.pack(">IHHQQI", 0x25609513, 0, READ, 1, 0, 4 << 20) * 100)
    check()
    for raw in raws:
        raw.socket.close()
    check()


def library(path):
    """Structured replies, extents, durable writes, and several connections."""
    one, two = connect(path), connect(path)
    assert one.get_structured_replies_negotiated() and one.can_meta_context("base:allocation")
    assert one.can_multi_conn() and one.can_flush() and one.can_fua() and one.can_df()
    sizes = (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)
    assert [one.get_block_size(size) for size in sizes] == [512, 4096, MAX_PAYLOAD]
    one.zero(one.get_size(), 0)
    data = os.urandom(1 << 20)
    one.pwrite(data, 1 << 20, nbd.CMD_FLAG_FUA)
    two.flush()
    chunks = []
    found = two.pread_structured(1 << 20, 1 << 20, lambda part, offset, status, error: chunks.append((offset, status)))
    assert found == data and chunks == [(1 << 20, nbd.READ_DATA)], chunks
    extents = []
    one.block_status(4 << 20, 0, lambda context, offset, entries, error: extents.extend(entries))
    assert extents == [1 << 20, 3, 1 << 20, 0, 2 << 20, 3], extents
    extents.clear()
    one.block_status(4 << 20, 0, lambda context, offset, entries, error: extents.extend(entries), nbd.CMD_FLAG_REQ_ONE)
    assert extents == [1 << 20, 3], extents
    one.trim(1 << 19, 1 << 20)
    assert one.pread(1 << 19, 1 << 20) == bytes(1 << 19)
    one.zero(4096, 3 << 19, nbd.CMD_FLAG_NO_HOLE)
    assert two.pread(8192, 3 << 19) == bytes(4096) + data[(1 << 19) + 4096:][:4096]
    for offset in [1, one.get_size()]:
        assert error_of(two.pread, 512, offset) == EINVAL
    assert error_of(two.pwrite, bytes(512), two.get_size()) == ENOSPC
    simple = connect(path, request_structured_replies=False)
    assert not simple.get_structured_replies_negotiated()
    assert simple.pread(4096, 3 << 19) == bytes(4096)
    for handle in [one, two, simple]:
        handle.shutdown()


def read_only(path):
    handle = connect(path)
    assert handle.is_read_only()
    for call, arguments in [(handle.pwrite, (bytes(512), 0)), (handle.trim, (512, 0)), (handle.zero, (512, 0))]:
        assert error_of(call, *arguments) == 1
    assert len(handle.pread(4096, 0)) == 4096


BLOCKS, SLOTS = 4096, 32


def content(block, count):
    return struct.pack(">QQ", block, count) * 256


def write_until_killed(path, record):
    """Writes blocks, and records after each flush which of them it covers, until the server dies."""
    handle = connect(path)
    counts, count = {}, 0
    with open(record, "w") as file:
        try:
            while True:
                count += 1
                # Every block has one writer at a time, so its content is that of its last write, or a later one.
                cookies = []
                for slot in range(SLOTS):
                    block = (count * SLOTS + slot) * 7 % BLOCKS
                    buffer = nbd.Buffer.from_bytearray(bytearray(content(block, count)))
                    cookies.append((block, handle.aio_pwrite(buffer, block * 4096)))
                while cookies:
                    handle.poll(-1)
                    done = [pair for pair in cookies if handle.aio_command_completed(pair[1])]
                    cookies = [pair for pair in cookies if pair not in done]
                    counts.update((block, count) for block, _ in done)
                handle.flush()
                file.write(" ".join(f"{block}:{last}" for block, last in counts.items()) + "\n")
                file.flush()
                counts.clear()
        except nbd.Error:
            pass


def verify_flushed(path, record):
    """Every flushed block has the content of its last flushed write, or of a later one."""
    handle, flushed = connect(path), {}
    with open(record) as file:
        for line in file:
            flushed.update(map(int, pair.split(":")) for pair in line.split())
    assert len(flushed) > 100, f"only {len(flushed)} blocks were flushed"
    for block, count in flushed.items():
        found = handle.pread(4096, block * 4096)
        number, last = struct.unpack(">QQ", found[:16])
        assert number == block and last >= count and found == content(block, last), (block, count, found[:16])
    print(f"{len(flushed)} blocks")


CHECKS = [options, requests, hostile, library, read_only, write_until_killed, verify_flushed]
{check.__name__: check for check in CHECKS}[sys.argv[1]](*sys.argv[2:])
