"""A program with connections to itself whose children are killed or never made. It closes its connections
then, and stays."""

import ctypes
import os
import resource
import signal
import socket
import sys
import time

PAIRS = 20
TURNS = 60
CHILDREN = 30
NOBODY = 65534


def exchange(pairs):
    for one, other in pairs:
        for number in range(TURNS):
            message = b"%08d" % number
            one.sendall(message)
            if other.recv(8, socket.MSG_WAITALL) != message:
                os._exit(3)
            other.sendall(message)
            if one.recv(8, socket.MSG_WAITALL) != message:
                os._exit(3)


def connect(listener):
    one = socket.create_connection(listener.getsockname())
    return one, listener.accept()[0]


def close(pairs):
    for one, other in pairs:
        one.close()
        other.close()


def fork(child):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    try:
        if os.WTERMSIG(os.waitpid(pid, 0)[1]) != signal.SIGKILL:
            sys.exit("the child ended before")
    except ChildProcessError:
        # Nobody wants to know of children.
        pass


def killed(pairs):
    for _ in range(CHILDREN):
        kill(fork(signal.pause))
    exchange(pairs)


def failed(pairs):
    """Forks that fail."""
    os.setresuid(NOBODY, NOBODY, NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    for _ in range(CHILDREN):
        try:
            os.fork()
            sys.exit("a fork did not fail")
        except BlockingIOError:
            pass
    exchange(pairs)


def late(pairs):
    """A child that goes on with what its parent has closed, while others are killed."""
    heard, said = os.pipe()
    done, tell = os.pipe()

    def child():
        for _ in range(2):
            os.read(heard, 1)
            exchange(pairs)
            os.write(tell, b"x")
        signal.pause()

    pid = fork(child)
    others = [fork(signal.pause) for _ in range(5)]
    close(pairs[1:])
    for other in others[:3]:
        kill(other)
    os.write(said, b"x")
    os.read(done, 1)
    close(pairs[:1])
    for other in others[3:]:
        kill(other)
    os.write(said, b"x")
    os.read(done, 1)
    kill(pid)


def unseen(pairs):
    """A fork that goes past the library, and then one that fails before it has forked."""
    heard, said = os.pipe()
    if ctypes.CDLL("libc.so.6").fork() == 0:
        os.close(said)
        os.read(heard, 1)
        os._exit(0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (said + 1, limits[1]))
    try:
        os.forkpty()
        sys.exit("there was a terminal")
    except OSError:
        pass
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    close(pairs)
    # For lanes that are given back.
    time.sleep(1)


def ignored(pairs):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    killed(pairs)


listener = socket.create_server(("127.0.0.1", 0))
pairs = [connect(listener) for _ in range(PAIRS)]
exchange(pairs)
{"killed": killed, "failed": failed, "late": late, "ignored": ignored, "unseen": unseen}[sys.argv[1]](pairs)
close(pairs)
print("closed", flush=True)
signal.pause()
