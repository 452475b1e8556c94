"""A process that is connected to itself and exchanges messages, one at a time.

Arguments: how many messages each way (default 200). A pause behind the first ones gives the daemon
time to match the two ends, as in the programs of common.h.
"""

import socket
import sys
import time

WARM = 20
PAUSE_S = 0.1

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
listener = socket.create_server(("127.0.0.1", 0))
connected = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()


def exactly(sock, length):
    data = b""
    while len(data) < length:
        more = sock.recv(length - len(data))
        if not more:
            sys.exit("the connection ended early")
        data += more
    return data


for number in range(rounds):
    if number == WARM:
        time.sleep(PAUSE_S)
    message = b"%08d" % number * 8
    for sender, receiver in ((connected, accepted), (accepted, connected)):
        sender.sendall(message)
        if exactly(receiver, len(message)) != message:
            sys.exit("a message arrived changed")
print("all", rounds, "messages arrived")
