"""Two connections with a program each; at the second one this program has as many files open as it may.
"""

import os
import resource
import socket
import sys
import time

ROUNDS = 400
# The first ones are slow, so that a daemon on a loaded machine has time for its match before the library asks whether
# there will be one (after 256 turnarounds).
SLOW_ROUNDS = 200
PAUSE_S = 0.005


def exactly(sock, length):
    data = b""
    while len(data) < length:
        more = sock.recv(length - len(data))
        if not more:
            sys.exit("the connection ended early")
        data += more
    return data


def peer(address):
    """Another program, with an end table of its own."""
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, __file__, str(address[1])])


def talk(sock):
    for number in range(ROUNDS):
        if number < SLOW_ROUNDS:
            time.sleep(PAUSE_S)
        message = b"%08d" % number
        sock.sendall(message)
        if exactly(sock, 8) != message:
            sys.exit("a message arrived changed")


if len(sys.argv) > 1:
    sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for _ in range(ROUNDS):
        sock.sendall(exactly(sock, 8))
    sock.recv(1)
else:
    listener = socket.create_server(("127.0.0.1", 0))
    peer(listener.getsockname())
    first = listener.accept()[0]
    talk(first)
    peer(listener.getsockname())
    second = listener.accept()[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    talk(second)
    for fd in held:
        os.close(fd)
    print("all messages arrived")
