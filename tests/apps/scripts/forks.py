"""A server that forks for each connection; the children end without closing it, or become another
program."""

import os
import signal
import socket
import sys


def serve(way):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server(("127.0.0.1", 0))
    print("port", listener.getsockname()[1], flush=True)
    number = 0
    while True:
        connection, _ = listener.accept()
        number += 1
        if os.fork() == 0:
            if way == "exec":
                try:
                    os.execv("/nowhere/cat", ["cat"])
                except FileNotFoundError:
                    pass
                if number % 3:
                    os.dup2(connection.fileno(), 0)
                    os.dup2(connection.fileno(), 1)
                    os.execvp("cat", ["cat"])
            while data := connection.recv(65536):
                connection.sendall(data)
            if number % 2:
                os._exit(0)
            sys.exit(0)
        connection.close()


def talk(port, connections):
    for number in range(connections):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            # Few and many messages: some connections are announced, some are not.
            for _ in range(1 + number % 2 * 30):
                connection.sendall(b"message")
                got = b""
                while len(got) < 7:
                    got += connection.recv(7 - len(got))
            connection.shutdown(socket.SHUT_WR)
            if got != b"message" or connection.recv(1):
                sys.exit("the answer is not the message")
    print("done")


if sys.argv[1] in ("server", "exec"):
    serve(sys.argv[1])
talk(int(sys.argv[2]), int(sys.argv[3]))
