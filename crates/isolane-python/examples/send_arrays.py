"""Writes a numpy array into the memory of another process, and sends a torch tensor if torch is installed.

`python send_arrays.py` prints its address and waits; with the address as an argument, it writes and sends.
"""

import sys

import numpy

import isolane

try:
    import torch  # optional: `pip install torch` adds the tensor
except ImportError:
    torch = None


def serve():
    array = numpy.zeros((256, 256), numpy.float32)
    memory = isolane.register(array)
    with isolane.listen("127.0.0.1:0") as listener:
        print(listener.address, flush=True)
        with listener.accept() as connection:
            connection.send(memory.remote.pack())  # the client writes by this key
            print("array:", connection.recv().nbytes, "bytes, sum", array.sum())
            tensor = numpy.empty(1024, numpy.float32) if torch is None else torch.empty(1024)
            print("tensor:", connection.recv(tensor).nbytes, "bytes, sum", float(tensor.sum()))


def send(address):
    with isolane.connect(address) as connection:
        packed = bytearray(20)
        connection.recv(packed)
        array = numpy.ones((256, 256), numpy.float32)
        connection.write(array, isolane.RemoteMemory.unpack(packed), immediate=1)
        tensor = numpy.ones(1024, numpy.float32) if torch is None else torch.ones(1024)
        connection.send(tensor)


send(sys.argv[1]) if len(sys.argv) > 1 else serve()
