"""Clients of an echo server that Sluice does not know: many turns, with the connection's names,
event loops and processes changing while it is left to the kernel (`client`), or another process
that holds it when it would be (`shared`), or one thread waiting and reading while another writes,
on one number after the other (`threads`)."""

import os
import select
import socket
import sys
import threading
import time


def serve():
    listener = socket.create_server(("127.0.0.1", 0))
    print("port", listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.close()


def turn(connection, number):
    message = b"%08d" % number
    connection.sendall(message)
    got = b""
    while len(got) < len(message):
        got += connection.recv(len(message) - len(got))
    if got != message:
        sys.exit(f"{got} is not {message}")


# A server that gets no processor answers late.
PATIENCE_S = 60
# For what must not come.
PAUSE_S = 0.2


def events_of(poller, fd, seconds=PATIENCE_S):
    # select.poll has milliseconds.
    limit = seconds * 1000 if isinstance(poller, type(select.poll())) else seconds
    return [events for ready, events in poller.poll(limit) if ready == fd]


def talk(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fd = connection.fileno()
    # One that knows the connection from before, and one that meets it later.
    early, late = select.epoll(), select.epoll()
    early.register(fd, select.EPOLLIN)
    for number in range(500):
        turn(connection, number)
        if number == 10:
            early.modify(fd, select.EPOLLIN | select.EPOLLOUT)
            early.unregister(fd)
            early.register(fd, select.EPOLLIN)
    late.register(fd, select.EPOLLIN | select.EPOLLET)
    plain = select.poll()
    plain.register(fd, select.POLLIN)
    for poller in (early, late, plain):
        connection.sendall(b"now")
        if not events_of(poller, fd):
            sys.exit("the answer is not reported")
        connection.recv(3, socket.MSG_WAITALL)
    if events_of(early, fd, PAUSE_S) or events_of(late, fd, PAUSE_S):
        sys.exit("an answer is reported that is not there")
    early.modify(fd, select.EPOLLOUT)
    if events_of(early, fd) != [select.EPOLLOUT]:
        sys.exit("room is not reported")
    copy = connection.dup()
    child = os.fork()
    if child == 0:
        for number in range(100):
            turn(copy, number)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("the child failed")
    connection.close()
    for number in range(200):
        turn(copy, number)
    # Back to the number that it had.
    os.dup2(copy.fileno(), fd)
    turn(copy, 1)
    os.close(fd)
    copy.shutdown(socket.SHUT_WR)
    if copy.recv(1):
        sys.exit("there is something behind the end")
    print("done")


def share(port):
    connection = socket.create_connection(("127.0.0.1", port))
    for number in range(10):
        turn(connection, number)
    ours, others = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(others)
        os.read(ours, 1)
        os._exit(0)
    os.close(ours)
    for number in range(200):
        turn(connection, number)
    print("still shared", file=sys.stderr, flush=True)
    os.close(others)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("the child failed")
    for number in range(1000):
        turn(connection, number)
        if number % 10 == 0:
            # So that sluiced answers in between, also on a busy machine.
            time.sleep(0.001)
    print("done")


def reader(connection, poller, turns, arrived):
    fd = connection.fileno()
    for number in range(turns):
        if not poller.poll(PATIENCE_S):
            os._exit(4)
        got = connection.recv(8)
        if got != b"%08d" % number:
            os._exit(5)
        poller.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)
        arrived.release()


def thread(port):
    numbers = set()
    poller = select.epoll()
    for _ in range(5):
        connection = socket.create_connection(("127.0.0.1", port))
        numbers.add(connection.fileno())
        poller.register(connection.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        arrived = threading.Semaphore(0)
        other = threading.Thread(target=reader, args=(connection, poller, 200, arrived))
        other.start()
        for number in range(200):
            connection.sendall(b"%08d" % number)
            if not arrived.acquire(timeout=PATIENCE_S):
                sys.exit("the answer was not reported")
        other.join()
        connection.close()
    if len(numbers) != 1:
        sys.exit("the number was not used again")
    print("done")


if sys.argv[1] == "server":
    serve()
elif sys.argv[1] == "shared":
    share(int(sys.argv[2]))
elif sys.argv[1] == "threads":
    thread(int(sys.argv[2]))
else:
    talk(int(sys.argv[2]))
