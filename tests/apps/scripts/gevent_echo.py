"""An echo server and a client of two connections at a time, with gevent. GEVENT_LOOP and GEVENT_BACKEND
say how gevent waits. The server ends with the client."""

import sys
import zlib

import gevent
from gevent import socket
from gevent.server import StreamServer

CONNECTIONS = 2
ROUNDS = 2000


def serve():
    ended = []

    def echo(connection, _):
        while data := connection.recv(65536):
            connection.sendall(data)
        ended.append(connection)
        if len(ended) == CONNECTIONS:
            server.stop(timeout=0)

    server = StreamServer(("127.0.0.1", 0), echo)
    server.start()
    print("port", server.server_port, flush=True)
    server.serve_forever()


def talk(port):
    total = 0
    connection = socket.create_connection(("127.0.0.1", port))
    for i in range(ROUNDS):
        message = bytes((i + at * 7) & 0xFF for at in range(1 + i * 37 % 500))
        connection.sendall(message)
        answer = b""
        while len(answer) < len(message):
            piece = connection.recv(len(message) - len(answer))
            if not piece:
                sys.exit(f"the connection ended in message {i}")
            answer += piece
        if answer != message:
            sys.exit(f"message {i} came back changed")
        total = zlib.crc32(answer, total)
    connection.shutdown(socket.SHUT_WR)
    if connection.recv(1):
        sys.exit("bytes after the last message")
    return f"{ROUNDS} rounds, sum {total:08x}"


def main():
    loop = gevent.get_hub().loop
    if sys.argv[1] == "server":
        serve()
        return
    talks = [gevent.spawn(talk, int(sys.argv[2])) for _ in range(CONNECTIONS)]
    gevent.joinall(talks, raise_error=True)
    print(type(loop).__module__, loop.backend)
    print("\n".join(talk.value for talk in talks))


main()
