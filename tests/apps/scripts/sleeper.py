"""Requests of 64 bytes and their answers, with pauses and without.

sleeper.py server ADDRESS: prints "port NUMBER", and answers.
sleeper.py client ADDRESS PORT FOLDER KIND COUNT ...: for each KIND (slow, quick) waits until the folder
has a file with the phase's number (1, 2, ...), makes as many requests, and prints "done NUMBER".
"""

import os
import socket
import sys
import time

BYTES = 64
PAUSE_S = 0.002


def exactly(sock):
    data = sock.recv(BYTES)
    while 0 < len(data) < BYTES:
        data += sock.recv(BYTES - len(data))
    return data


def server(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    print("port", listener.getsockname()[1], flush=True)
    sock = listener.accept()[0]
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := exactly(sock):
        sock.sendall(data)


def client(address, port, folder, *phases):
    sock = socket.create_connection((address, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for number, (kind, count) in enumerate(zip(phases[::2], phases[1::2]), 1):
        while not os.path.exists(f"{folder}/{number}"):
            time.sleep(0.01)
        for request in range(int(count)):
            message = b"%064d" % request
            sock.sendall(message)
            if exactly(sock) != message:
                sys.exit("another answer")
            if kind == "slow":
                time.sleep(PAUSE_S)
        print("done", number, flush=True)


{"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
