"""nccl_net.py LIBRARY: two processes send data with the plugin of NCCL for InfiniBand, and check each byte.

The plugin is a table of functions that the library does not export, `ncclNetIb`; its layout is the one of NCCL 2.32
(ncclNet_v12_t). It needs no GPU for memory of the host.
"""

import ctypes
import os
import subprocess
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from two_processes import run_both

FUNCTIONS = (
    "name init devices getProperties listen connect accept regMr regMrDmaBuf deregMr isend irecv iflush test closeSend"
    " closeRecv closeListen"
).split()
HOST_MEMORY = 1
SIZES = (4, 1024, 1 << 20, 64 << 20)


class Plugin:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        with open("/proc/self/maps") as maps:
            start = min(int(line.split("-")[0], 16) for line in maps if os.path.realpath(path) in line)
        symbols = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines()
        offset = next(int(line.split()[0], 16) for line in symbols if line.split()[-1] == "ncclNetIb")
        table = (c_void_p * len(FUNCTIONS)).from_address(start + offset)
        self.functions = {name: ctypes.CFUNCTYPE(c_int)(at) for name, at in zip(FUNCTIONS[1:], table[1:])}
        self.context, devices = c_void_p(), c_int()
        self.logger = ctypes.CFUNCTYPE(None)(lambda: None)
        self.call("init", byref(self.context), c_uint64(1), byref(c_int(-1)), self.logger, None)
        self.call("devices", byref(devices))
        assert devices.value > 0, "no device"

    def call(self, name, *arguments):
        status = self.functions[name](*arguments)
        assert status == 0, f"{name}: {status}"

    def until_set(self, name, made, *arguments):
        while not made.value:
            self.call(name, *arguments)
        return made

    def finish(self, request):
        """Returns the length of a completed request."""
        done, sizes = c_int(), (c_int * 8)()
        while not done.value:
            self.call("test", request, byref(done), sizes)
        return sizes[0]


def connect(plugin, pipe, receives):
    handle, comm, device = ctypes.create_string_buffer(128), c_void_p(), c_void_p()
    if not receives:
        handle.raw = pipe.recv()
        return plugin.until_set("connect", comm, plugin.context, c_int(0), handle, byref(comm), byref(device))
    listener = c_void_p()
    plugin.call("listen", plugin.context, c_int(0), handle, byref(listener))
    pipe.send(handle.raw)
    return plugin.until_set("accept", comm, listener, byref(comm), byref(device))


def run(path, pipe, receives):
    plugin = Plugin(path)
    comm = connect(plugin, pipe, receives)
    for nbytes in SIZES:
        pattern = (bytes(range(251)) * (nbytes // 251 + 1))[:nbytes]
        buffer = ctypes.create_string_buffer(bytes(nbytes) if receives else pattern, nbytes)
        memory, request, tag = c_void_p(), c_void_p(), c_int(7)
        plugin.call("regMr", comm, buffer, c_size_t(nbytes), c_int(HOST_MEMORY), byref(memory))
        if receives:
            start, none = c_void_p(ctypes.addressof(buffer)), c_void_p()
            lists = [byref(start), byref(c_size_t(nbytes)), byref(tag), byref(memory), byref(none)]
            plugin.until_set("irecv", request, comm, c_int(1), *lists, byref(request))
        else:
            plugin.until_set("isend", request, comm, buffer, c_size_t(nbytes), tag, memory, None, byref(request))
        length = plugin.finish(request)
        if receives:
            assert length == nbytes and buffer.raw == pattern, f"{nbytes} bytes are wrong"
            print(nbytes, "bytes arrived", flush=True)
        plugin.call("deregMr", comm, memory)
    pipe.send("done")
    assert pipe.recv() == "done"
    plugin.call("closeRecv" if receives else "closeSend", comm)


if __name__ == "__main__":
    run_both(run, sys.argv[1], 120)
