"""A prefork server that says whom it serves: who.py NAME ADDRESS PORT PROCESSES.

Each connection gets a line "NAME PEER PORT OWN PORT" before it says anything, and then its own
bytes back, until it ends. What every connection came to is a line on standard output.

who.py NAME ADDRESS PORT PROCESSES again: it listens, and executes itself without an environment, as nginx does with its
new binary. What it is then takes the listener over as nginx and haproxy do: it says nothing of it but that connections
are to be accepted at once.
"""
import os
import selectors
import socket
import sys

name, address, port, processes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
if sys.argv[5:6] == ["inherited"]:
    listener = socket.socket(fileno=int(sys.argv[6]))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 0)
else:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    try:
        listener.listen(1024)
    except OSError as error:
        print("listen", error.errno, flush=True)
        sys.exit(3)
if sys.argv[5:] == ["again"]:
    listener.set_inheritable(True)
    inherited = ["inherited", str(listener.fileno())]
    os.execve(sys.executable, [sys.executable] + sys.argv[:5] + inherited, {})
listener.setblocking(False)
print("ready", listener.getsockname()[1], flush=True)
for _ in range(processes - 1):
    if os.fork() == 0:
        break


def finish(connection, why):
    selector.unregister(connection)
    connection.close()
    print("ended by", why, flush=True)


def echo(connection):
    try:
        data = connection.recv(65536)
    except BlockingIOError:
        return
    except ConnectionResetError:
        return finish(connection, "reset")
    if not data:
        return finish(connection, "eof")
    connection.setblocking(True)
    try:
        connection.sendall(data)
    except OSError:
        return finish(connection, "reset")
    connection.setblocking(False)


def accept(_):
    try:
        connection, peer = listener.accept()
    except BlockingIOError:
        return
    try:
        # Three ways to ask, and one answer.
        again = connection.getpeername()
        assert peer[:2] == again[:2], (peer, again)
        own = connection.getsockname()
        line = f"{name} {peer[0]} {peer[1]} {own[0]} {own[1]}\n"
        connection.sendall(line.encode())
    except OSError:
        # Reset before it was looked at.
        connection.close()
        print("ended by reset", flush=True)
        return
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ, echo)


selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ, accept)
while True:
    for key, _ in selector.select():
        key.data(key.fileobj)
