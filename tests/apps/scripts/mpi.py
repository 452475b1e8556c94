"""Two ranks of an MPI send messages of many lengths to each other and check every byte.

    mpi.py openmpi|mpich

By ctypes, so that no MPI's headers are needed: what is a constant in the one is the address of a symbol in the other.
"""

import ctypes
import sys

LENGTHS = [(1, 50), (8, 200), (64, 200), (1000, 100), (9000, 50), (70_000, 20), (3_000_000, 3)]


class OpenMpi:
    library = "libmpi.so.40"

    def __init__(self, mpi):
        self.world = ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world"))
        self.byte = ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_byte"))


class Mpich:
    library = "libmpich.so.12"

    def __init__(self, mpi):
        self.world = ctypes.c_int(0x44000000)
        self.byte = ctypes.c_int(0x4C00010D)


def pattern(rank, length, turn):
    step = 1 + rank * 2 + turn % 5
    block = bytes((at * step + turn) % 251 for at in range(min(length, 251 * 8)))
    return (block * (length // max(len(block), 1) + 1))[:length]


def main():
    kind = {"openmpi": OpenMpi, "mpich": Mpich}[sys.argv[1]]
    mpi = ctypes.CDLL(kind.library, mode=ctypes.RTLD_GLOBAL)
    constants = kind(mpi)
    no_status = ctypes.c_void_p(1 if kind is Mpich else 0)  # MPI_STATUS_IGNORE

    def call(name, *arguments):
        status = getattr(mpi, name)(*arguments)
        if status:
            sys.exit(f"{name}: {status}")

    call("MPI_Init", None, None)
    rank, size = ctypes.c_int(), ctypes.c_int()
    call("MPI_Comm_rank", constants.world, ctypes.byref(rank))
    call("MPI_Comm_size", constants.world, ctypes.byref(size))
    if size.value != 2:
        sys.exit(f"{size.value} ranks, not 2")
    own, other = rank.value, 1 - rank.value

    def send(data):
        call("MPI_Send", data, len(data), constants.byte, other, 7, constants.world)

    def receive(length, turn):
        room = ctypes.create_string_buffer(length)
        call("MPI_Recv", room, length, constants.byte, other, 7, constants.world, no_status)
        if room.raw != pattern(other, length, turn):
            sys.exit(f"rank {own}: other bytes, length {length}, turn {turn}")

    for length, turns in LENGTHS:
        for turn in range(turns):
            if own == 0:
                send(pattern(own, length, turn))
                receive(length, turn)
            else:
                receive(length, turn)
                send(pattern(own, length, turn))
    call("MPI_Barrier", constants.world)
    call("MPI_Finalize")
    print(f"rank {own}: all bytes are right", flush=True)


main()
