"""A connection that lives through something: 200 messages, a file that says so, and when another file is
there 200 more.

live_talk.py HALF GO
"""
import os
import socket
import sys
import threading
import time

half, go = sys.argv[1:]
server = socket.create_server(("127.0.0.1", 0))


def serve():
    connection, _ = server.accept()
    while data := connection.recv(4096):
        connection.sendall(data)


threading.Thread(target=serve, daemon=True).start()
client = socket.create_connection(server.getsockname())


def talk(first):
    for number in range(first, first + 200):
        message = b"%06d" % number * 300
        client.sendall(message)
        answer = b""
        while len(answer) < len(message):
            data = client.recv(4096)
            assert data, "the connection ended"
            answer += data
        assert answer == message, number


talk(0)
open(half, "w").close()
while not os.path.exists(go):
    time.sleep(0.01)
talk(200)
print("all 400 messages arrived")
