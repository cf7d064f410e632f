#!/usr/bin/env python3
"""preload_programs.py NAME...: programs with sockets, whose output must not depend on the library of `isolane engine run`.

Each program uses both ends of connections on loopback. It prints what it has observed, and fails by itself if it hangs.
"""
import array
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import select
import resource
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

listener = socket.create_server(("127.0.0.1", 0))


def pair():
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The first message of an end moves it.
    near.sendall(b"a"), far.sendall(b"b")
    assert far.recv(1) == b"a" and near.recv(1) == b"b"
    return near, far


def exactly(end, count):
    data = bytearray()
    while len(data) < count:
        part = end.recv(count - len(data))
        assert part, "the connection has ended"
        data += part
    return bytes(data)


def locked():
    print(ctypes.CDLL(None).mlockall(3))
    near, far = pair()
    near.sendall(b"after")
    print(exactly(far, 5), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 512 << 10)


def forked():
    """Threads that start children at the same time."""
    ends = pair()

    def start():
        for _ in range(100):
            if (child := os.fork()) == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, "a child has failed"

    threads = [threading.Thread(target=start) for _ in range(3)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    for near, far in (ends, pair()):
        for index in range(5000):
            near.sendall(b"%8d" % index)
            assert exactly(far, 8) == b"%8d" % index
    print("same")


def ended():
    near, far = pair()
    main = threading.main_thread()

    def last():
        while open(f"/proc/self/task/{main.native_id}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.01)
        near.sendall(b"last")
        print(exactly(far, 4), flush=True)

    threading.Thread(target=last).start()
    ctypes.CDLL(None).pthread_exit(None)


def sizes():
    near, far = pair()
    for size in (1, 64, 1000, 4096, 100_000, 3_000_000):
        data = os.urandom(size)
        sender = threading.Thread(target=near.sendall, args=(data,))
        sender.start()
        print(size, exactly(far, size) == data)
        sender.join()
    # In one direction first: a dialog stays with the kernel if it has two cores.
    for end, other in ((near, far), (far, near)):
        for index in range(1000):
            end.sendall(b"%8d" % index)
            assert exactly(other, 8) == b"%8d" % index
    for index in range(1000):
        near.sendall(b"%8d" % index)
        assert exactly(far, 8) == b"%8d" % index
        far.sendall(b"%8d" % index)
        assert exactly(near, 8) == b"%8d" % index


def dialog():
    near, far = pair()
    for index in range(2000):
        near.sendall(b"%8d" % index)
        assert exactly(far, 8) == b"%8d" % index
        far.sendall(b"%8d" % index)
        assert exactly(near, 8) == b"%8d" % index


def vectors():
    near, far = pair()
    print(os.writev(near.fileno(), [b"abc", b"", b"defg"]), near.sendmsg([b"hi", b"jkl"]))
    exactly_ready(far, 12)
    parts = [bytearray(2), bytearray(3), bytearray(20)]
    print(os.readv(far.fileno(), parts), [bytes(part) for part in parts])
    print(os.write(far.fileno(), b"xyz"), exactly_ready(near, 3), os.read(near.fileno(), 10))
    far.sendall(b"message")
    exactly_ready(near, 7)
    data, control, flags, address = near.recvmsg(20, 100)
    print(data, control, flags, address)
    far.sendall(b"message")
    exactly_ready(near, 7)
    print(near.recvfrom(20))


def exactly_ready(end, count):
    """Waits until `count` bytes can be read, and returns their number as FIONREAD does."""
    found = array.array("i", [0])
    while found[0] < count:
        select.select([end], [], [], 1)
        fcntl.ioctl(end, termios.FIONREAD, found)
    return found[0]


def flags():
    near, far = pair()
    near.sendall(b"abcdef")
    exactly_ready(far, 6)
    print(far.recv(3, socket.MSG_PEEK), far.recv(3, socket.MSG_PEEK | socket.MSG_DONTWAIT), far.recv(2))
    threading.Timer(0.05, near.sendall, [b"ghij"]).start()
    print(far.recv(8, socket.MSG_WAITALL))
    try:
        far.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError as error:
        print(error.errno == errno.EAGAIN)
    far.setblocking(False)
    try:
        far.recv(1)
    except BlockingIOError as error:
        print(error.errno == errno.EAGAIN)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20_000))
    fcntl.fcntl(far, fcntl.F_SETFL, fcntl.fcntl(far, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    started = time.monotonic()
    try:
        far.recv(1)
    except BlockingIOError as error:
        print(error.errno == errno.EAGAIN, time.monotonic() - started >= 0.02)
    print(far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def full():
    """A sender without a reader gets EAGAIN, and no byte is lost."""
    near, far = pair()
    near.setblocking(False)
    sent = 0
    block = bytes(range(256)) * 16
    # The engine and the kernel hold the data of the ring for a moment each.
    while select.select([], [near], [], 0.2)[1]:
        try:
            sent += near.send(block[sent % 256:])
        except BlockingIOError:
            pass
    print("full")
    received = 0
    while received < sent:
        data = far.recv(65536)
        assert data == bytes((received + index) % 256 for index in range(len(data)))
        received += len(data)
    print(select.select([], [near], [], 5)[1] == [near])


def interrupted():
    """A blocking call transfers everything, although its socket moves in between."""
    data = bytes(range(251)) * 40_000
    for move in (
        lambda end: end.getsockopt(socket.IPPROTO_TCP, 25),
        lambda end: os.waitpid(os.fork() or os._exit(0), 0),
    ):
        near, far = pair()
        results = []
        sender = threading.Thread(target=lambda: results.append(near.send(data)))
        receiver = threading.Thread(target=lambda: results.append(far.recv(len(data), socket.MSG_WAITALL) == data))
        sender.start()
        # The sender waits for the receiver.
        time.sleep(0.05)
        move(near)
        receiver.start()
        time.sleep(0.01)
        move(far)
        sender.join(), receiver.join()
        print(sorted(results))


def closed():
    """A call that waits on a descriptor takes no bytes of the next connection with its number."""
    for close in (
        lambda near, other: (near.close(), os.dup2(other, number)),
        lambda near, other: (os.dup2(other, number), near.detach()),
    ):
        near, far = pair()
        number = near.fileno()

        def read():
            try:
                os.read(number, 10)
            except OSError:
                pass

        threading.Thread(target=read, daemon=True).start()
        time.sleep(0.05)
        next_near, next_far = pair()
        close(near, next_near.fileno())
        time.sleep(0.05)
        next_far.sendall(b"for its owner")
        print(exactly(socket.socket(fileno=number), 13))


def names():
    """The C library's other names of its functions."""
    libc = ctypes.CDLL(None)
    near, far = pair()
    other = lambda name, *arguments: getattr(libc, "__" + name)(*arguments)
    buffer = ctypes.create_string_buffer(10)
    far.sendall(b"0123456789")
    exactly_ready(near, 10)
    print(other("read", near.fileno(), buffer, 5), buffer.value, near.recv(10))
    print(other("write", near.fileno(), b"abc", 3), near.send(b"def"), other("send", near.fileno(), b"ghi", 3, 0))
    print(exactly(far, 9))
    entry = (ctypes.c_int * 2)(near.fileno(), select.POLLIN)
    far.sendall(b"x")
    print(other("poll", entry, 1, 5000), entry[1] >> 16)
    bits = (ctypes.c_long * 16)()
    bits[near.fileno() // 64] = 1 << near.fileno() % 64
    print(other("select", near.fileno() + 1, bits, None, None, None), near.recv(1))
    copies = other("fcntl", near.fileno(), fcntl.F_DUPFD, 100), other("dup2", far.fileno(), 200)
    near.sendall(b"01"), far.sendall(b"23")
    print(os.read(200, 1), far.recv(1), os.read(copies[0], 1), near.recv(1))
    near, far = pair()
    print(other("close", near.detach()), far.recv(1))
    near, far = pair()
    libc._IO_fdopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc._IO_fdopen(near.fileno(), b"r"))
    far.sendall(b"line 1\nline 2\n")
    exactly_ready(near, 14)
    print(libc.fgetc(file), near.setblocking(False), libc.fgetc(file), libc.fclose(file), near.detach() > 2)


def filtered():
    """A program below a filter of system calls that ends it for a call of the library."""
    if os.environ.get("FILTERED"):
        near, far = pair()
        near.sendall(b"filtered")
        print(exactly(far, 8), flush=True)
        return
    libc = ctypes.CDLL(None)
    # Kill on memfd_create; allow others.
    number = {"x86_64": 319, "aarch64": 279}[os.uname().machine]
    steps = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    if (child := os.fork()) == 0:
        libc.prctl(38, 1, 0, 0, 0)
        assert libc.prctl(22, 2, header) == 0
        os.execve(sys.argv[0], [sys.argv[0], "filtered"], os.environ | {"FILTERED": "1"})
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    near, far = pair()
    near.sendall(b"outside")
    print(exactly(far, 7))


def namespaces():
    """Calls that only a process with one thread can make."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(call):
        near, far = pair()
        if (child := os.fork()) == 0:
            one, two = pair()
            one.sendall(b"0")
            assert exactly(two, 1) == b"0"
            if result := call():
                os._exit(ctypes.get_errno())
            one.sendall(b"1")
            assert exactly(two, 1) == b"1"
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    enter(lambda: libc.unshare(0x10000000))
    enter(lambda: libc.syscall({"x86_64": 272, "aarch64": 97}[os.uname().machine], ctypes.c_long(0x10000000)))
    enter(lambda: libc.setns(os.open("/proc/self/ns/mnt", os.O_RDONLY), 0))
    enter(lambda: libc.unshare(0x400))
    near, far = pair()


def plugins():
    """A library that finds functions of the C library first. $PLUGIN is one with a function that reads."""
    reads_by(lambda path: ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_DEEPBIND))


def spaces():
    """The same library, with its own C library."""
    libc = ctypes.CDLL(None)
    libc.dlmopen.restype = ctypes.c_void_p
    reads_by(lambda path: ctypes.CDLL(path, handle=libc.dlmopen(ctypes.c_long(-1), path.encode(), os.RTLD_NOW)))


def reads_by(load):
    near, far = pair()
    plugin = load(os.environ["PLUGIN"])
    buffer = ctypes.create_string_buffer(10)
    for near, far in ((near, far), pair()):
        far.sendall(b"0123456789")
        exactly_ready(near, 10)
        print(plugin.plugin_read(near.fileno(), buffer, 5), buffer.value, near.recv(10))


def rebinds():
    """The port is free once the server's last socket is closed, because the peer has closed first."""
    failures = 0
    for _ in range(50):
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen()
        peer = socket.create_connection(server.getsockname())
        end, _ = server.accept()
        end.sendall(b"x")
        assert exactly(peer, 1) == b"x"
        peer.close()
        assert end.recv(1) == b""
        address = server.getsockname()
        end.close(), server.close()
        again = socket.socket()
        try:
            again.bind(address)
        except OSError as error:
            failures += error.errno == errno.EADDRINUSE
    print(failures)


def prompt():
    """Calls that do not wait find data, and the end, once the peer's call has returned."""
    near, far = pair()
    # The peer's bytes are in the kernel when its call returns.
    peer = far.dup()
    far.close()
    poller, events = select.poll(), select.epoll()
    poller.register(near, select.POLLIN), events.register(near, select.EPOLLIN)
    read_end, write_end = os.pipe()

    def announced(wait):
        """Also when a wait ends for another descriptor."""
        os.write(write_end, b"x")
        found = wait()
        os.read(read_end, 1)
        return near.fileno() in found

    both = select.poll()
    both.register(near, select.POLLIN), both.register(read_end, select.POLLIN)
    checks = [
        lambda: True,
        lambda: bool(poller.poll(0)),
        lambda: bool(events.poll(0)),
        lambda: bool(select.select([near], [], [], 0)[0]),
        lambda: fcntl.ioctl(near, termios.FIONREAD, bytes(4)) == b"\1\0\0\0",
        lambda: near.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"x",
        lambda: announced(lambda: [fd for fd, _ in both.poll(5000)]),
        lambda: announced(lambda: [end if end == read_end else end.fileno() for end in select.select([near, read_end], [], [])[0]]),
    ]
    for check in checks:
        missed = 0
        for _ in range(100):
            peer.send(b"x")
            missed += not check()
            try:
                near.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                missed += 1
                near.recv(1)
            # Acknowledges the byte: while too many are not acknowledged, the peer's kernel keeps the next.
            near.send(b"y")
            assert exactly(peer, 1) == b"y"
        print(missed, poller.poll(0), events.poll(0))
    ends = []
    for check in (
        lambda end: end.recv(1, socket.MSG_DONTWAIT),
        lambda end: len(select.select([end], [], [], 0)[0]),
    ):
        for _ in range(20):
            near, far = pair()
            peer = far.dup()
            far.close()
            peer.shutdown(socket.SHUT_WR)
            try:
                ends.append(check(near))
            except BlockingIOError:
                ends.append("no end")
    print(ends)


def peeks():
    near, far = pair()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sender = threading.Thread(target=near.sendall, args=(bytes(600_000),))
    sender.start()
    while len(far.recv(600_000, socket.MSG_PEEK)) < 600_000:
        time.sleep(0.001)
    sender.join()
    near, far = pair()
    near.sendall(b"abcdefg")
    exactly_ready(far, 7)
    parts = [bytearray(3), bytearray(10)]
    print(far.recvmsg_into(parts, 0, socket.MSG_PEEK)[0], parts)


def empties():
    near, far = pair()
    print(os.read(far.fileno(), 0), os.readv(far.fileno(), [bytearray(0)]), os.writev(far.fileno(), [b""]), far.send(b""))
    actions = [lambda: far.recv(0, socket.MSG_DONTWAIT), lambda: far.send(b""), lambda: os.write(far.fileno(), b"")]

    def attempt(action):
        try:
            print(action())
        except OSError as error:
            print(errno.errorcode[error.errno])

    attempt(actions[0])
    near.sendall(b"x")
    exactly_ready(far, 1)
    attempt(actions[0])
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.close()
    time.sleep(0.02)
    for action in actions[1:]:
        attempt(action)


def whole():
    """Short messages of several threads do not mix while the connection is full."""
    near, far = pair()

    def sender(index):
        for _ in range(3000):
            near.sendall(bytes([index]) * 120)

    threads = [threading.Thread(target=sender, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    torn = 0
    for index in range(4 * 3000):
        torn += len(set(exactly(far, 120))) > 1
        if index % 500 == 0:
            time.sleep(0.01)
    print(torn)


def limits():
    """Processes whose limits leave no space for a session."""

    def allocates():
        resource.setrlimit(resource.RLIMIT_AS, (1800 << 20, 1800 << 20))
        pair()
        mmap.mmap(-1, 1200 << 20)

    def locks():
        assert ctypes.CDLL(None).mlockall(3) == 0
        pair()
        with open("/proc/self/status") as file:
            assert int(next(line for line in file if line.startswith("VmLck")).split()[1]) < 500_000

    for check in (
        lambda: (resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)), pair()),
        allocates,
        locks,
    ):
        child = os.fork()
        if child == 0:
            check()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    pair()


def ends():
    near, far = pair()
    near.sendall(b"last")
    near.shutdown(socket.SHUT_WR)
    print(exactly(far, 4), far.recv(1))
    far.sendall(b"answer")
    far.close()
    print(exactly(near, 6), near.recv(1))
    near, far = pair()
    near.sendall(b"unread by the peer")
    exactly_ready(far, 18)
    far.close()
    observed = []
    for _ in range(3):
        try:
            near.setblocking(True)
            observed.append(near.recv(1))
        except OSError as error:
            observed.append(errno.errorcode[error.errno])
    print(observed)
    try:
        while True:
            near.send(b"x")
    except OSError as error:
        print(errno.errorcode[error.errno])
    near, far = pair()
    near.sendall(b"sent before the close")
    near.close()
    print(exactly(far, 21), far.recv(1))


def signals():
    near, far = pair()
    caught = []
    signal.signal(signal.SIGALRM, lambda number, frame: caught.append(number) or (_ for _ in ()).throw(InterruptedError))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        near.recv(1)
    except InterruptedError:
        print("interrupted", caught == [signal.SIGALRM])
    signal.signal(signal.SIGALRM, lambda number, frame: caught.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    threading.Timer(0.15, far.sendall, [b"z"]).start()
    print(near.recv(1), len(caught))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    print(select.poll().poll(100), len(caught))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        one, two = pair()
        two.close()
        try:
            while True:
                one.send(b"x")
                time.sleep(0.001)
        except ConnectionResetError:
            one.send(b"x")
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGPIPE)


def polls():
    near, far = pair()
    other = pair()
    readers = select.poll()
    readers.register(near, select.POLLIN)
    readers.register(other[0], select.POLLIN)
    print(readers.poll(0), select.select([near, other[0]], [near], [near], 0) == ([], [near], []))
    threading.Timer(0.05, far.sendall, [b"1"]).start()
    print([event for _, event in readers.poll(5000)], near.recv(1))
    threading.Timer(0.05, other[1].sendall, [b"2"]).start()
    print(select.select([near, other[0]], [], [], 5)[0] == [other[0]], other[0].recv(1))
    started = time.monotonic()
    print(readers.poll(30), time.monotonic() - started >= 0.03)
    # Another thread receives the events of both.
    results = []
    waiters = [
        threading.Thread(target=lambda end=end: results.append(select.select([end], [], [], 5)[0] == [end]))
        for end in (near, other[0])
    ]
    for waiter in waiters:
        waiter.start()
    time.sleep(0.05)
    far.sendall(b"3"), other[1].sendall(b"4")
    for waiter in waiters:
        waiter.join()
    print(results)
    read_end, write_end = os.pipe()
    readers.register(read_end, select.POLLIN)
    near.recv(1), other[0].recv(1)
    threading.Timer(0.05, os.write, [write_end, b"5"]).start()
    print(readers.poll(5000) == [(read_end, select.POLLIN)])
    far.close()
    readers.unregister(read_end)
    print([event for _, event in readers.poll(5000)])


def levels():
    near, far = pair()
    events = select.epoll()
    events.register(near, select.EPOLLIN)
    print(events.poll(0))
    threading.Timer(0.05, far.sendall, [b"12"]).start()
    for _ in range(2):
        print([event for _, event in events.poll(5)])
    print(near.recv(1), [event for _, event in events.poll(5)], near.recv(1), events.poll(0))
    events.modify(near, select.EPOLLIN | select.EPOLLOUT)
    print([event for _, event in events.poll(5)])
    far.sendall(b"3")
    exactly_ready(near, 1)
    print([event for _, event in events.poll(5)], near.recv(1))
    events.modify(near, select.EPOLLIN | select.EPOLLRDHUP)
    far.shutdown(socket.SHUT_WR)
    print([event for _, event in events.poll(5)], near.recv(1))
    libc = ctypes.CDLL(None, use_errno=True)
    print(libc.epoll_ctl(events.fileno(), 1, near.fileno(), None), errno.errorcode[ctypes.get_errno()])
    for action in (lambda: events.register(near, 1), lambda: (events.unregister(near), events.modify(near, 1))):
        try:
            action()
        except OSError as error:
            print(errno.errorcode[error.errno])
    far.close()
    print(events.poll(0))


def late():
    """A socket moves while another thread waits for it."""
    for wait in (
        lambda end, events: events.poll(5),
        lambda end, events: select.select([end], [], [], 5)[0],
        lambda end, events: end.recv(1, socket.MSG_PEEK),
    ):
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        events, results = select.epoll(), []
        events.register(near, select.EPOLLIN)
        waiter = threading.Thread(target=lambda: results.append(len(wait(near, events))))
        waiter.start()
        time.sleep(0.05)
        near.sendall(b"moves")
        exactly(far, 5)
        far.sendall(b"x")
        waiter.join()
        print(results, near.recv(1), events.poll(0), select.select([near], [], [], 0)[0])


def edges():
    near, far = pair()
    events = select.epoll()
    events.register(near, select.EPOLLIN | select.EPOLLET)
    print(events.poll(0))
    for round in range(3):
        far.sendall(b"x" * (round + 1))
        print([event for _, event in events.poll(5)])
    exactly_ready(near, 6)
    print(near.recv(100))
    # No edge is missed: each message gets its event, although reads stop at EAGAIN only.
    near.setblocking(False)

    def sender():
        for index in range(2000):
            far.sendall(b"%8d" % index)
            if index % 100 == 0:
                time.sleep(0.001)

    thread = threading.Thread(target=sender)
    thread.start()
    received = b""
    while len(received) < 16_000:
        assert events.poll(5), "an edge is missing"
        try:
            while True:
                received += near.recv(300)
        except BlockingIOError:
            pass
    thread.join()
    print(received == b"".join(b"%8d" % index for index in range(2000)))
    events.modify(near, select.EPOLLIN | select.EPOLLONESHOT)
    far.sendall(b"y")
    exactly_ready(near, 1)
    print([event for _, event in events.poll(5)], events.poll(0.02))
    events.modify(near, select.EPOLLIN | select.EPOLLONESHOT)
    print([event for _, event in events.poll(5)], near.recv(1), events.poll(0))
    # Unread bytes are reported once, also if the next waits end without an event.
    near, far = pair()
    events = select.epoll()
    events.register(near, select.EPOLLIN | select.EPOLLET)
    far.sendall(b"0123456789")
    exactly_ready(near, 10)
    print(len(events.poll(5)), near.recv(1))
    print([len(events.poll(timeout)) for timeout in (0.02, 0.02, 0, 0.02, 0)], near.recv(10))


def settings():
    """A thread changes settings of sockets while these move."""
    changes = (
        lambda end: end.setblocking(False),
        lambda end: end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 1000)),
    )
    for change in changes:
        kept = 0
        while kept < 100:
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
            gate = threading.Barrier(2)
            thread = threading.Thread(target=lambda: (gate.wait(), change(far)))
            thread.start()
            gate.wait()
            far.sendall(b"x")
            thread.join()
            # It ends a call that waits although it must not.
            late = threading.Timer(5, near.sendall, [b"late"])
            late.start()
            try:
                far.recv(1)
                break
            except BlockingIOError:
                kept += 1
            finally:
                late.cancel()
                late.join()
            near.close(), far.close()
        print(kept)


def oneshots():
    """Members of which the kernel has reported the one shot before they move, and others that are armed then."""
    events = select.epoll()
    for edge in (0, select.EPOLLET):
        for armed in (False, True):
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            interest = select.EPOLLIN | select.EPOLLONESHOT | edge
            events.register(far, interest)
            near.sendall(b"0123456789")
            print(len(events.poll(5)))
            if armed:
                events.modify(far, interest)
            print(far.recv(4), len(events.poll(0.02)), events.poll(0.02))
            for _ in range(3):
                near.sendall(b"x")
                exactly_ready(far, 7)
                print(events.poll(0.02))
                events.modify(far, interest)
                print(len(events.poll(5)), far.recv(1), events.poll(0.02))
            far.close()


def nested():
    """Sets in other sets, before and after their members move; the other connections of the process go on."""
    for edge in (0, select.EPOLLET):
        near, far = pair()
        inner, outer = select.epoll(), select.epoll()
        inner.register(near, select.EPOLLIN)
        # The set has adopted members, and waits for them, before it is a member itself.
        far.sendall(b"0")
        print(len(inner.poll(5)), near.recv(1), inner.poll(0))
        outer.register(inner, select.EPOLLIN | edge)
        print(outer.poll(0))
        threading.Timer(0.05, far.sendall, [b"1"]).start()
        print(len(outer.poll(5)), len(inner.poll(5)), near.recv(1), outer.poll(0))
        # A member that is added later, and a third level.
        late, peer = pair()
        inner.register(late, select.EPOLLIN)
        top = select.epoll()
        top.register(outer, select.EPOLLIN)
        threading.Timer(0.05, peer.sendall, [b"2"]).start()
        print(len(top.poll(5)), len(outer.poll(5)), inner.poll(5) == [(late.fileno(), select.EPOLLIN)], late.recv(1))
        print(quiet(inner), quiet(outer), quiet(top))
    # A thread that waits for a set while that becomes a member.
    near, far = pair()
    inner, outer, found = select.epoll(), select.epoll(), []
    inner.register(near, select.EPOLLIN)
    far.sendall(b"3")
    print(len(inner.poll(5)), near.recv(1))
    waiter = threading.Thread(target=lambda: found.extend(inner.poll(5)))
    waiter.start()
    time.sleep(0.05)
    outer.register(inner, select.EPOLLIN)
    far.sendall(b"4")
    waiter.join()
    print(found == [(near.fileno(), select.EPOLLIN)], near.recv(1))
    for wait in (lambda: select.select([polled], [], [], 5)[0] == [polled], lambda: len(poller.poll(5000))):
        polled, poller = select.epoll(), select.poll()
        one, two = pair()
        polled.register(one, select.EPOLLIN)
        poller.register(polled, select.POLLIN)
        two.sendall(b"5")
        print(len(polled.poll(5)), one.recv(1), polled.poll(0))
        threading.Timer(0.05, two.sendall, [b"6"]).start()
        print(wait(), len(polled.poll(0)), one.recv(1), quiet(polled))


def quiet(events):
    """A set reports nothing while other connections of the process have events."""
    near, far = pair()
    others = select.epoll()
    others.register(far, select.EPOLLIN)
    found = []
    thread = threading.Thread(target=lambda: found.extend(events.poll(0.2)))
    thread.start()
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        near.sendall(b"x")
        assert others.poll(5), "no event"
        far.recv(1)
    thread.join()
    return found


def inherited():
    """A child that inherits a set, and waits for it while the parent's other connections have events."""
    near, far = pair()
    events = select.epoll()
    events.register(near, select.EPOLLIN)
    far.sendall(b"0")
    print(len(events.poll(5)), near.recv(1))
    begin, ready = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begin[0], 1)
        found = events.poll(0.3)
        assert found == [], found
        os.write(ready[1], b"x")
        assert events.poll(5) == [(near.fileno(), select.EPOLLIN)] and near.recv(1) == b"1"
        os._exit(0)
    os.write(begin[1], b"x")
    # A connection of the parent only, in a set of both: the parent adds it later.
    one, two = pair()
    one.sendall(b"2")
    exactly_ready(two, 1)
    print(quiet(select.epoll()), quiet(select.epoll()))
    os.read(ready[0], 1)
    far.sendall(b"1")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    events.register(two, select.EPOLLIN)
    print(events.poll(5) == [(two.fileno(), select.EPOLLIN)], two.recv(1))
    one.sendall(b"3"), far.sendall(b"4")
    exactly_ready(near, 1), exactly_ready(two, 1)
    print(len(events.poll(5)), near.recv(1), two.recv(1), quiet(events))


def shared():
    """Threads that share a set get each event of a one-shot member once."""
    events = select.epoll()
    pairs = [pair() for _ in range(8)]
    ends = {near.fileno(): near for near, _ in pairs}
    for near, _ in pairs:
        near.setblocking(False)
        events.register(near, select.EPOLLIN | select.EPOLLONESHOT)
    seen, lock = {fd: b"" for fd in ends}, threading.Lock()

    def worker():
        while True:
            for fd, _ in events.poll(0.2, 1):
                try:
                    data = ends[fd].recv(100)
                except BlockingIOError:
                    data = b""
                with lock:
                    seen[fd] += data
                    if sum(map(len, seen.values())) == 8 * 300:
                        return
                events.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)
            with lock:
                if sum(map(len, seen.values())) == 8 * 300:
                    return

    workers = [threading.Thread(target=worker) for _ in range(3)]
    for thread in workers:
        thread.start()
    for index in range(300):
        for _, far in pairs:
            far.sendall(bytes([index % 256]))
    for thread in workers:
        thread.join(20)
    print(all(data == bytes(index % 256 for index in range(300)) for data in seen.values()))


def children():
    near, far = pair()
    far.sendall(b"before the fork")
    child = os.fork()
    if child == 0:
        # The child continues the parent's connection, and has its own.
        assert exactly(near, 15) == b"before the fork"
        near.sendall(b"from the child")
        one, two = pair()
        one.sendall(b"own")
        assert exactly(two, 3) == b"own"
        os._exit(0)
    print(exactly(far, 14), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    near.sendall(b"parent")
    print(exactly(far, 6))
    near, far = pair()
    near.sendall(b"queued")
    far.set_inheritable(True)
    status = os.system(f"test queued = $(head -c 6 <&{far.fileno()}) && echo done >&{far.fileno()}")
    print(status, exactly(near, 5))
    near, far = pair()
    near.sendall(b"by exec")
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "head -c 7"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, far.fileno(), 0)])
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def duplicates():
    near, far = pair()
    near.sendall(b"0123456789")
    exactly_ready(far, 10)
    copy = far.dup()
    print(exactly(copy, 4), exactly(far, 4))
    far.close()
    copy.sendall(b"by the copy")
    print(exactly(near, 11), exactly(copy, 2))
    copy.close()
    print(near.recv(1))
    near, far = pair()
    near.sendall(b"sent away")
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [far.fileno()])
    far.close()
    _, fds, _, _ = socket.recv_fds(right, 1, 1)
    print(exactly(socket.socket(fileno=fds[0]), 9))
    near, far = pair()
    os.dup2(far.fileno(), 200)
    near.sendall(b"two")
    print(os.read(200, 3))
    near, far = pair()
    near.sendall(b"stdio")
    near.close()
    with os.fdopen(os.dup(far.fileno()), "rb") as file:
        print(file.read())
    with open("/proc/self/exe", "rb") as file:
        near, far = pair()
        print(os.sendfile(near.fileno(), file.fileno(), 0, 1000), exactly(far, 4))


def copies():
    """Sockets of which another descriptor exists before they connect, or in a child: each byte is read once."""
    def connected(prepare):
        near = socket.socket()
        kept = prepare(near)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        far.sendall(b"0123456789")
        exactly_ready(near, 10)
        return near, far, kept

    near, _, copy = connected(lambda end: end.dup())
    print(os.read(copy.fileno(), 5), near.recv(10))
    near, _, copy = connected(lambda end: os.dup2(end.fileno(), 201))
    print(os.read(201, 5), near.recv(10))
    ends = socket.socketpair()
    near, _, _ = connected(lambda end: socket.send_fds(ends[0], [b"x"], [end.fileno()]))
    copy = socket.recv_fds(ends[1], 1, 1)[1][0]
    print(os.read(copy, 5), near.recv(10))

    def forked(end):
        begin, ready = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.read(begin[0], 1)
            os.write(ready[1], end.recv(5))
            os._exit(0)
        return begin[1], ready[0]

    near, far, (begin, ready) = connected(forked)
    os.write(begin, b"x")
    print(os.read(ready, 5), near.recv(10))
    # The way of inetd: the child's program has the socket as its input.
    for start in (
        lambda end: subprocess.Popen(["dd", "bs=5", "count=1", "status=none"], stdin=end, stdout=subprocess.PIPE),
        lambda end: subprocess.Popen(["dd", f"if=/dev/fd/{end}", "bs=5", "count=1", "status=none"], pass_fds=[end], stdout=subprocess.PIPE),
        inetd,
    ):
        near, far = pair()
        child = start(near.fileno())
        # The next transfers of other sockets find that the child has called exec.
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            pair()
        far.sendall(b"0123456789")
        print(child.communicate()[0] if start is not inetd else os.read(child, 5))
        print(near.recv(10))
    events = select.epoll()
    near, far, _ = connected(lambda end: events.register(end, select.EPOLLIN))
    print(near.recv(10), events.poll(0))
    far.sendall(b"more")
    print(events.poll(5) == [(near.fileno(), select.EPOLLIN)], near.recv(10), events.poll(0))


def inetd(fd):
    read_end, write_end = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, fd, 0), (os.POSIX_SPAWN_DUP2, write_end, 1)]
    os.posix_spawn("/bin/dd", ["dd", "bs=5", "count=1", "status=none"], os.environ, file_actions=actions)
    return read_end


def turns():
    """Waits end for the events of all their members, and for no others."""
    libc = ctypes.CDLL(None, use_errno=True)
    near, far = pair()
    read_end, write_end = os.pipe()
    events = select.epoll()
    events.register(near, select.EPOLLIN), events.register(read_end, select.EPOLLIN)
    far.sendall(b"x"), os.write(write_end, b"y")
    exactly_ready(near, 1)
    print({events.poll(5, 1)[0][0] for _ in range(10)} == {near.fileno(), read_end})
    # The last adopted member leaves; another connection has an event that nobody waits for.
    other, peer = pair()
    events.unregister(read_end)
    print(select.select([other], [], [], 0.01)[0])
    near.close()
    peer.sendall(b"z")
    exactly_ready(other, 1)
    started = time.monotonic()
    print(events.poll(0.1), 0.1 <= time.monotonic() - started)
    # `poll` resets the events of entries without a descriptor.
    entries = (ctypes.c_int * 4)(other.fileno(), select.POLLIN, -1, 0x7F0000 | select.POLLIN)
    print(libc.poll(entries, 2, 1000), entries[1] >> 16, entries[3] >> 16)
    # A hangup is no event of the set for exceptions.
    other.recv(1)
    started = time.monotonic()
    os.close(write_end)
    print(select.select([other], [], [read_end], 0.1), 0.1 <= time.monotonic() - started)
    near, far = pair()
    near.sendall(b"unread")
    exactly_ready(far, 6)
    far.close()
    print(select.select([near], [], [], 5)[0] == [near])
    started = time.monotonic()
    print(select.select([], [], [near], 0.1), 0.1 <= time.monotonic() - started)


def exhausted():
    """All descriptors are in use."""
    near, far = pair()
    events = select.epoll()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    kept = []
    try:
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        print(errno.errorcode[error.errno])
    events.register(near, select.EPOLLIN)
    far.sendall(b"x")
    print(len(events.poll(5)), near.recv(1))
    near, far = far, near
    print(select.select([near], [], [], 0.01)[0])
    threading.Timer(0.05, far.sendall, [b"y"]).start()
    print(len(select.select([near], [], [], 5)[0]), near.recv(1))


def outlived():
    """Waits of a program whose engine ends: until a line arrives, it does something else."""
    pairs = [pair() for _ in range(4)]
    events, second = select.epoll(), select.epoll()
    for near, _ in pairs[:2]:
        events.register(near, select.EPOLLIN)
    second.register(pairs[3][0], select.EPOLLIN)
    pairs[0][0].shutdown(socket.SHUT_WR)
    pairs[1][0].shutdown(socket.SHUT_WR)
    print(len(second.poll(0)))
    print("started", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    print(events.poll(0.1), 0.1 <= time.monotonic() - started)
    poller = select.poll()
    poller.register(pairs[2][0], select.POLLIN)
    print(poller.poll(50), select.select([pairs[2][0]], [], [pairs[2][0]], 0.05), second.poll(0.05))
    for near, far in pairs:
        far.sendall(b"x")
        print(near.recv(1))


def options():
    near, far = pair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.sendall(b"x")
    print(exactly(far, 1))
    near.close()
    try:
        print(far.recv(1))
    except ConnectionResetError:
        print("reset")
    near, far = pair()
    near.sendall(b"urgent follows")
    near.send(b"!", socket.MSG_OOB)
    print(exactly(far, 14))
    near, far = pair()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 4)
    near.sendall(b"ab")
    time.sleep(0.02)
    print(select.select([far], [], [], 0)[0] == [])
    near.sendall(b"cd")
    print(select.select([far], [], [], 5)[0] == [far], far.recv(10))
    print(far.getsockopt(socket.IPPROTO_TCP, 25))
    # From the listener.
    for level, name in ((socket.SOL_SOCKET, 29), (socket.IPPROTO_TCP, 36)):
        with socket.create_server(("127.0.0.1", 0)) as special:
            special.setsockopt(level, name, 1)
            near = socket.create_connection(special.getsockname())
            far, _ = special.accept()
        far.sendall(b"x")
        # The kernel starts to take times soon after the first request.
        for _ in range(1000):
            near.sendall(b"y")
            messages = far.recvmsg(1, 100)[1]
            if messages:
                break
            time.sleep(0.001)
        print([message[:2] for message in messages])
    near, far = pair()
    near.sendall(b"z")
    exactly_ready(far, 1)
    libc, length = ctypes.CDLL(None, use_errno=True), ctypes.c_int(-1)
    address = ctypes.create_string_buffer(16)
    print(libc.recvfrom(far.fileno(), ctypes.create_string_buffer(1), 1, 0, address, ctypes.byref(length)), ctypes.get_errno())


def rings():
    """Connections return once there is a ring. $RING is a library that makes one past the C library, or empty."""
    near, far = pair()
    parameters = (ctypes.c_char * 120)()
    if library := os.environ["RING"]:
        ring = ctypes.CDLL(library).make_ring(parameters)
    else:
        ring = ctypes.CDLL(None).syscall(ctypes.c_long(425), ctypes.c_long(1), parameters)
    print(os.readlink(f"/proc/self/fd/{ring}"))
    # Checks are at most 0.1 s apart.
    until, rounds = time.monotonic() + 0.2, 0
    for _ in range(2):
        other, peer = pair()
        while rounds < 100 or time.monotonic() < until:
            for one, two in ((near, far), (other, peer)):
                one.sendall(b"%8d" % rounds)
                assert exactly(two, 8) == b"%8d" % rounds
            rounds += 1
    print("same")


def streams():
    """Many connections with messages of all sizes, in threads and in a loop."""
    pairs = [pair() for _ in range(8)]
    print("started", flush=True)
    until = time.monotonic() + float(os.environ.get("SECONDS_OF_STREAMS", "1"))

    def echo(end):
        while data := end.recv(20_000):
            end.sendall(data)
        end.close()

    def blocking(end, seed):
        position = 0
        while time.monotonic() < until:
            size = (seed * 7919 + position * 31) % 9000 + 1
            data = bytes((seed + position + index) % 251 for index in range(0, size))
            end.sendall(data)
            assert exactly(end, size) == data
            position += size
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b""

    def looping(ends):
        events = select.epoll()
        sent, received = [0] * len(ends), [0] * len(ends)
        by_fd = {end.fileno(): index for index, end in enumerate(ends)}
        for end in ends:
            end.setblocking(False)
            events.register(end, select.EPOLLIN | select.EPOLLOUT)
        while time.monotonic() < until or any(sent[index] != received[index] for index in range(len(ends))):
            found = events.poll(10)
            assert found, "no event"
            for fd, flags in found:
                index = by_fd[fd]
                if flags & select.EPOLLIN:
                    data = ends[index].recv(5000)
                    assert data == bytes((received[index] + offset) % 251 for offset in range(len(data)))
                    received[index] += len(data)
                if flags & select.EPOLLOUT and sent[index] - received[index] < 3000 and time.monotonic() < until:
                    size = sent[index] % 1300 + 1
                    sent[index] += ends[index].send(bytes((sent[index] + offset) % 251 for offset in range(size)))

    threads = [threading.Thread(target=echo, args=(far,)) for _, far in pairs]
    threads += [threading.Thread(target=blocking, args=(near, seed)) for seed, (near, _) in enumerate(pairs[:4])]
    threads.append(threading.Thread(target=looping, args=([near for near, _ in pairs[4:]],)))
    failures = []
    threading.excepthook = lambda arguments: (failures.append(arguments), sys.__excepthook__(*arguments[:3]))
    for thread in threads:
        thread.start()
    for thread in threads[8:]:
        thread.join()
    for near, _ in pairs[4:]:
        near.close()
    for thread in threads[:8]:
        thread.join()
    print("streams", len(failures))
    sys.exit(1 if failures else 0)


signal.alarm(60)
for name in sys.argv[1:]:
    signal.alarm(60)
    globals()[name]()
