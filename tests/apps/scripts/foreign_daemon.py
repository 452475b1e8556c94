"""Listens in place of sluiced, as root in a container that has its directory can. Prints what it is given."""

import os
import socket
import sys

path = sys.argv[1]
os.unlink(path)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(path)
listener.listen()
print("listens", flush=True)
while True:
    program, _ = listener.accept()
    print("asked", flush=True)
    message, descriptors, _, _ = socket.recv_fds(program, 4096, 16)
    if message:
        print(f"given {len(message)} bytes and {len(descriptors)} descriptors", flush=True)
    print("answered", flush=True)
