"""A client of an echo server that Sluice does not know, which hands its connection on by exec; the
next program uses an option that only the kernel honours."""

import os
import socket
import sys

TURNS = 100


def talk(connection):
    for number in range(TURNS):
        message = b"%08d" % number
        connection.sendall(message)
        if connection.recv(8, socket.MSG_WAITALL) != message:
            sys.exit("the answer is not the message")


if sys.argv[1] == "first":
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    talk(connection)
    os.dup2(connection.fileno(), 9)
    if len(sys.argv) > 3 and os.fork() != 0:
        # The parent keeps it, too, and goes on with it.
        if os.wait()[1] != 0:
            sys.exit("the child failed")
        talk(connection)
        sys.exit(0)
    os.execv(sys.executable, [sys.executable, sys.argv[0], "second"])
connection = socket.socket(fileno=9)
talk(connection)
connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)
talk(connection)
print("done")
