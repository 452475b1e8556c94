"""Two programs of pyverbs on two hosts: "serve PORT" and "ask PORT ADDRESS". They tell each other over TCP
where they are, and then check what SEND, WRITE, READ and atomics bring."""

import json
import socket
import sys

from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 65536
TURNS = 20
COUNTER = 0x1122334455667788
MTU = e.IBV_MTU_1024


def pattern(seed):
    return bytes((seed * 31 + i * 7 + (i >> 8)) & 0xFF for i in range(SIZE))


class End:
    """A queue pair, and a region of two halves: what is sent, and what comes."""

    def __init__(self, stream):
        # One for both would lose what it has read ahead as it writes.
        self.heard, self.said = stream.makefile("r"), stream.makefile("w")
        self.context = Context(name="sluice0")
        self.pd = PD(self.context)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        access |= e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
        self.mr = MR(self.pd, 2 * SIZE, access)
        self.cq = CQ(self.context, 16)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=8, max_recv_wr=8))
        self.qp = QP(self.pd, init)
        self.connect(access)

    def connect(self, access):
        port = self.context.query_port(1)
        gid = self.context.query_gid(1, 0).gid
        own = {
            "qpn": self.qp.qp_num,
            "lid": port.lid,
            "gid": gid,
            "address": self.mr.buf,
            "rkey": self.mr.rkey,
        }
        self.peer = self.swap(own)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        self.qp.to_init(attr)
        route = GlobalRoute(dgid=GID(self.peer["gid"]), sgid_index=0, hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1, dlid=self.peer["lid"])
        attr.path_mtu = MTU
        attr.dest_qp_num = self.peer["qpn"]
        attr.rq_psn = 0
        attr.sq_psn = 0
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer = 12
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 18, 7, 7
        self.qp.to_rts(attr)

    def swap(self, own):
        """Says something over TCP, and hears what the peer says: both are as far then."""
        self.said.write(json.dumps(own) + "\n")
        self.said.flush()
        line = self.heard.readline()
        if not line:
            sys.exit("the peer has gone")
        return json.loads(line)

    def completion(self, opcode):
        while True:
            count, completions = self.cq.poll(1)
            if count:
                break
        one = completions[0]
        if one.status != e.IBV_WC_SUCCESS or one.opcode != opcode:
            sys.exit(f"{one}")
        return one

    def local(self, offset, length):
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def receive(self):
        self.qp.post_recv(RecvWR(sg=[self.local(SIZE, SIZE)], num_sge=1))

    def post(self, opcode, length=SIZE, offset=0, at=SIZE, atomic=None, imm=0):
        work = SendWR(opcode=opcode, sg=[self.local(offset, length)], num_sge=1, imm_data=imm)
        if atomic is not None:
            work.set_wr_atomic(self.peer["rkey"], self.peer["address"] + at, *atomic)
        else:
            work.set_wr_rdma(self.peer["rkey"], self.peer["address"] + at)
        self.qp.post_send(work)

    def check(self, wanted, offset=SIZE):
        got = self.mr.read(SIZE, offset)
        if got != wanted:
            where = next(i for i in range(SIZE) if got[i] != wanted[i])
            sys.exit(f"byte {where} is {got[where]} and not {wanted[where]}")


def ask(end):
    for turn in range(TURNS):
        end.mr.write(pattern(turn), SIZE, 0)
        # The receive is there.
        end.swap("ready")
        end.post(e.IBV_WR_SEND_WITH_IMM, imm=turn)
        end.completion(e.IBV_WC_SEND)
        end.post(e.IBV_WR_RDMA_WRITE)
        end.completion(e.IBV_WC_RDMA_WRITE)
        end.swap("written")
        end.swap("changed")
        end.post(e.IBV_WR_RDMA_READ, offset=SIZE, at=0)
        end.completion(e.IBV_WC_RDMA_READ)
        end.check(pattern(100 + turn))
        end.post(e.IBV_WR_ATOMIC_FETCH_AND_ADD, length=8, offset=SIZE, at=0, atomic=(turn + 1, 0))
        end.completion(e.IBV_WC_FETCH_ADD)
        if end.mr.read(8, SIZE) != pattern(100 + turn)[:8]:
            sys.exit("fetch and add: not what was there")
        before = (int.from_bytes(pattern(100 + turn)[:8], "little") + turn + 1) % 2**64
        end.post(e.IBV_WR_ATOMIC_CMP_AND_SWP, length=8, offset=SIZE, at=0, atomic=(before, COUNTER))
        end.completion(e.IBV_WC_COMP_SWAP)
        if int.from_bytes(end.mr.read(8, SIZE), "little") != before:
            sys.exit("compare and swap: not what was added to")
        end.swap("counted")


def serve(end):
    for turn in range(TURNS):
        end.receive()
        end.swap("ready")
        one = end.completion(e.IBV_WC_RECV)
        if one.byte_len != SIZE or one.imm_data != turn:
            sys.exit(f"{one}")
        end.swap("written")
        end.check(pattern(turn))
        end.mr.write(pattern(100 + turn), SIZE, 0)
        end.swap("changed")
        end.swap("counted")
        if int.from_bytes(end.mr.read(8, 0), "little") != COUNTER:
            sys.exit("compare and swap changed nothing")


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    if role == "serve":
        with socket.create_server(("", port)) as listener:
            stream, _ = listener.accept()
        serve(End(stream))
    else:
        ask(End(socket.create_connection((sys.argv[3], port))))
    print("all as it should be")


main()
