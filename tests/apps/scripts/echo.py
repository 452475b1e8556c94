"""The echo server and client of echo.go in Python: same messages, same checksum."""

import asyncio
import socket
import sys


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def talk(port):
    total = 0xCBF29CE484222325
    connection = socket.create_connection(("127.0.0.1", port))
    stream = connection.makefile("rb")
    for i in range(2000):
        message = bytes((i + at * 7) & 0xFF for at in range(1 + i * 37 % 5000))
        connection.sendall(message)
        answer = stream.read(len(message))
        if answer != message:
            sys.exit(f"message {i} came back changed")
        for byte in answer:
            total = ((total ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    connection.shutdown(socket.SHUT_WR)
    if stream.read():
        sys.exit("bytes after the last message")
    print(f"sum {total:016x}")


if sys.argv[1] == "server":
    asyncio.run(serve())
else:
    talk(int(sys.argv[2]))
