"""Two ends in two network namespaces. One has shut down writing while it has unread bytes, and lives: the other
one is told of the end of the stream, goes on writing, and nothing is lost."""

import socket
import sys
import time

TURNS = 3000
UNREAD = 1000
MORE = 500
# The first turns are slow, so that a daemon on a loaded machine has time for its match before the library asks
# whether there will be one (after 256 turnarounds).
SLOW_TURNS = 200
PAUSE_S = 0.005


def serve():
    listener = socket.create_server(("0.0.0.0", 0))
    print("port", listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    for _ in range(TURNS):
        if connection.recv(8, socket.MSG_WAITALL) != b"question":
            sys.exit("not the question")
        connection.sendall(b"answers!")
    # Awake, so that what comes is put into the ring.
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass
    connection.shutdown(socket.SHUT_WR)
    time.sleep(0.3)
    got = 0
    while data := connection.recv(65536):
        got += len(data)
    if got != UNREAD + MORE:
        sys.exit(f"{got} bytes came")


def talk(address, port):
    connection = socket.create_connection((address, port))
    for turn in range(TURNS):
        if turn < SLOW_TURNS:
            time.sleep(PAUSE_S)
        connection.sendall(b"question")
        if connection.recv(8, socket.MSG_WAITALL) != b"answers!":
            sys.exit("not the answer")
    connection.sendall(b"u" * UNREAD)
    if connection.recv(1) != b"":
        sys.exit("no end of the stream")
    connection.sendall(b"m" * MORE)
    connection.shutdown(socket.SHUT_WR)


if sys.argv[1] == "serve":
    serve()
else:
    talk(sys.argv[2], int(sys.argv[3]))
