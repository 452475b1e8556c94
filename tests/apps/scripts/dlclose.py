"""Loads a library, closes it (dlclose), and goes on: what the library has left behind (handlers for fork
and exit, threads) must not be called where nothing is mapped any more.

Argument: the library's path.
"""

import _ctypes
import ctypes
import os
import socket
import sys

for _ in range(3):
    library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)
    if hasattr(library, "ibv_get_device_list"):
        # Starts what a verbs program has started.
        count = ctypes.c_int()
        library.ibv_get_device_list.restype = ctypes.c_void_p
        devices = library.ibv_get_device_list(ctypes.byref(count))
        library.ibv_open_device.restype = ctypes.c_void_p
        library.ibv_open_device.argtypes = [ctypes.c_void_p]
        first = ctypes.cast(devices, ctypes.POINTER(ctypes.c_void_p))[0]
        print("opened", bool(library.ibv_open_device(first)))
    _ctypes.dlclose(library._handle)
    child = os.fork()
    if child == 0:
        os._exit(0)
    print("child", os.waitpid(child, 0)[1])
one, other = socket.socketpair()
one.send(b"x")
print(other.recv(1))
with open("/proc/self/maps") as maps:
    print("mapped", any(os.path.realpath(sys.argv[1]) in line for line in maps))
