"""A connection with unread bytes is passed to a program without the preload library, which could
not read them; and descriptors come that say of themselves that they bring such bytes, and lie.

To be run under Sluice. Prints what it found, one line each.
"""
import array
import os
import socket
import subprocess
import sys
import time

MESSAGE = b"sluice: passed 1"
WORDS = 5000


def send(channel, fds):
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    return channel.sendmsg([b"fd"], [rights])


def receive(channel):
    _, control, _, _ = channel.recvmsg(16, socket.CMSG_SPACE(4))
    fds = array.array("i")
    for _, kind, data in control:
        if kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % 4])
    return list(fds)


def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    return one, listener.accept()[0]


def with_unread_bytes():
    """The reading end; its peer is a process that sleeps until its standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    hold_in, hold_out = os.pipe()
    if os.fork() == 0:
        os.close(hold_out)
        peer = socket.create_connection(listener.getsockname())
        for _ in range(400):
            peer.sendall(b"ping")
            peer.recv(4)
            time.sleep(0.0001)
        peer.sendall(b"x" * WORDS)
        os.read(hold_in, 1)
        os._exit(0)
    os.close(hold_in)
    end = listener.accept()[0]
    for _ in range(400):
        end.sendall(end.recv(4))
    time.sleep(0.2)
    return end, hold_out


def stranger(mode):
    """What a program without the library does."""
    channel = socket.socket(fileno=0)
    if mode == "receives":
        (fd,) = receive(channel)
        end = socket.socket(fileno=fd)
        print("stranger: family", end.family.name, flush=True)
        end.sendall(b"from the stranger")
        return
    # Lies: wrappers as the library makes them.
    null = os.open("/dev/null", os.O_RDWR)
    one, other = pair()
    junk = os.memfd_create("sluice-carry", os.MFD_ALLOW_SEALING)
    os.write(junk, b"SLUICECY" + bytes(range(200)))
    lies = [[null, null], [other.fileno(), null], [other.fileno(), junk], [null], []]
    for fds in lies:
        inner, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        inner.sendmsg([MESSAGE], [rights] if fds else [])
        send(channel, [outer.fileno()])
    # Somebody's own socket, with a message of its own that has a descriptor.
    inner, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null]))
    inner.sendmsg([b"sluice: passed 2"], [rights])
    send(channel, [outer.fileno()])
    channel.recv(1)


def start(mode):
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    program = subprocess.Popen(
        [sys.executable, __file__, mode], stdin=theirs, env=environment, close_fds=True
    )
    theirs.close()
    return channel, program


def main():
    end, hold = with_unread_bytes()
    channel, program = start("receives")
    try:
        send(channel, [end.fileno()])
        print("passed at once")
    except OSError as error:
        print("refused", error.errno, flush=True)
    got = b""
    while len(got) < WORDS:
        got += end.recv(WORDS)
    print("read", len(got), got == b"x" * WORDS, flush=True)
    sent = send(channel, [end.fileno()])
    # Both programs print to one place: the stranger's line comes first.
    program.wait()
    print("then", sent, flush=True)
    os.close(hold)

    channel, program = start("lies")
    for number in range(5):
        (fd,) = receive(channel)
        kind = os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
        print("lie", number, kind, end=" ")
        if kind == "socket":
            with socket.socket(fileno=fd) as lie:
                try:
                    print(lie.recv(10, socket.MSG_DONTWAIT) or "nothing")
                except BlockingIOError:
                    print("nothing")
                except OSError as error:
                    print(error.errno)
        else:
            os.close(fd)
            print()
    (fd,) = receive(channel)
    own = socket.socket(fileno=fd)
    data, control, _, _ = own.recvmsg(100, socket.CMSG_SPACE(4))
    print("own", data, len(control))
    channel.send(b"e")
    program.wait()


if len(sys.argv) > 1:
    stranger(sys.argv[1])
else:
    main()
