"""A process that is connected to itself, writes once, and goes on when it is told.

Arguments: a file to wait for before it talks, one that ends the talk, and how many more descriptors
each end has.
"""

import os
import socket
import sys
import time

go, end = sys.argv[1:3]


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


listener = socket.create_server(("127.0.0.1", 0))
connected = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
copies = [end.dup() for end in (connected, accepted) for _ in range(int(sys.argv[3]))]
connected.sendall(b"first")
print("written", flush=True)
wait_for(go)
data = accepted.recv(5, socket.MSG_WAITALL)
while not os.path.exists(end):
    for sender, receiver in ((accepted, connected), (connected, accepted)):
        sender.sendall(data)
        if receiver.recv(5, socket.MSG_WAITALL) != b"first":
            sys.exit("a message arrived changed")
