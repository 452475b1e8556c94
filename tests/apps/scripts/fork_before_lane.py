"""A server that shares its connection with a child when the lane comes, until the file `alone` is there. It
ends when the file `end` is."""

import os
import signal
import socket
import sys
import time

# After which its connection is announced.
TURNS = 20
MANY_TURNS = 2000


def turn(server):
    message = os.urandom(64)
    server.sendall(message)
    if server.recv(len(message), socket.MSG_WAITALL) != message:
        sys.exit("another message came back")


def with_child(server, alone, before, beside):
    """So many turns before there is a child, and at least so many beside it."""
    exchange(server, before)
    child = fork(signal.pause)
    exchange(server, beside, until=alone)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def leaves_it(server, alone, end):
    """The child goes on with the connection, and has it alone later."""
    exchange(server, TURNS)
    child = fork(lambda: goes_on(server, alone + ".closed", end))
    exchange(server, until=alone)
    server.close()
    open(alone + ".closed", "x")
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("the child failed")
    sys.exit(0)


def goes_on(server, go, end):
    while not os.path.exists(go):
        time.sleep(0.001)
    exchange(server, until=end)


def fork(child):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return pid


def exchange(server, turns=0, until=None):
    """At least so many turns, and then some more until the file is there."""
    while turns > 0 or until and not os.path.exists(until):
        turn(server)
        turns -= 1


def serve(way, alone, end):
    listener = socket.create_server(("127.0.0.1", 0))
    print("port", listener.getsockname()[1], flush=True)
    server = listener.accept()[0]
    if way == "leaves it":
        leaves_it(server, alone, end)
    elif way == "has a child":
        with_child(server, alone, TURNS, 0)
    else:
        # From before the first byte, and longer than the other end would wait.
        with_child(server, alone, 0, MANY_TURNS)
    exchange(server, until=end)
    server.close()


def echo(port):
    client = socket.create_connection(("127.0.0.1", int(port)))
    while said := client.recv(4096):
        client.sendall(said)


if sys.argv[1] == "client":
    echo(sys.argv[2])
else:
    serve(*sys.argv[1:])
