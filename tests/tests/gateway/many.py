"""A server at very many ports: many.py NAME FIRST COUNT.

A connection gets the line of who.py, and its end.
"""
import resource
import selectors
import socket
import sys

name, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
selector = selectors.DefaultSelector()
for port in range(first, first + count):
    listener = socket.create_server(("0.0.0.0", port))
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in selector.select():
        try:
            connection, peer = key.fileobj.accept()
        except BlockingIOError:
            continue
        own = connection.getsockname()
        line = f"{name} {peer[0]} {peer[1]} {own[0]} {own[1]}\n"
        connection.sendall(line.encode())
        connection.close()
