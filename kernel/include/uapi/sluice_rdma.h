/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What sluice_rdma and its provider for rdma-core (kernel/rdma/provider) have to agree on. Everything
 * goes by the common commands of uverbs. Who asks for it with a queue pair or a completion queue has
 * its queues in memory that he maps, and posts and polls there (docs/kernel.md, "Mapped queues").
 */
#ifndef SLUICE_RDMA_UAPI_H
#define SLUICE_RDMA_UAPI_H

#include <linux/types.h>

/* ib_device.uverbs_abi_ver */
#define SLUICE_RDMA_ABI		1

/* A file in the folder of each of its devices in sysfs, which says the same number. */
#define SLUICE_RDMA_MARK	"sluice_rdma"

/* Of all that follows. */
#define SLUICE_RDMA_QUEUES	1

/* Behind the commands create_qp and create_cq. */
struct sluice_rdma_ask {
	__u32 queues;
	__u32 reserved;
};

/* Behind the answer of create_cq. All zeros: it is not mapped. Places are a power of two. */
struct sluice_rdma_cq_answer {
	__u32 queues;
	__u32 places;
	/* Where in the mapping the first place is; before it are struct sluice_rdma_cq_words. */
	__u32 at;
	__u32 reserved;
	/* To be mapped, shared, as a whole. */
	__aligned_u64 offset;
	__aligned_u64 bytes;
};

/* Behind that of create_qp. A queue pair with shared receives has no places for its own. */
struct sluice_rdma_qp_answer {
	__u32 queues;
	__u32 send_places;
	__u32 send_bytes;
	__u32 send_at;
	__u32 receive_places;
	__u32 receive_bytes;
	__u32 receive_at;
	__u32 reserved;
	__aligned_u64 offset;
	__aligned_u64 bytes;
};

/*
 * Positions count and wrap. Who fills a ring writes the place, then its tail; who empties it copies, then writes
 * its head. Nobody reads back what it has written itself.
 */
struct sluice_rdma_cq_words {
	/* The kernel's: tail; and whether it looks at all that belongs to this queue at this moment. */
	__u32 tail;
	__u32 attended;
	__u32 reserved_kernel[14];
	/* The program's. */
	__u32 head;
	__u32 reserved_program[15];
};

/* sluice_rdma_qp_words.send_call */
#define SLUICE_RDMA_LOOKS	0
#define SLUICE_RDMA_NOBODY	1

struct sluice_rdma_qp_words {
	/* The program's. */
	__u32 send_tail;
	__u32 reserved_send[15];
	__u32 receive_tail;
	__u32 reserved_receive[15];
	/* The kernel's: requests before this one have ended, receives before this one were taken. */
	__u32 send_head;
	__u32 receive_head;
	/*
	 * Whether nobody will look by himself at what is posted. To be read behind a full barrier behind the
	 * tail; then post_send, or post_recv, of no request at all is the call.
	 */
	__u32 send_call;
	__u32 receive_call;
	__u32 reserved_kernel[12];
};

struct sluice_rdma_sge {
	__aligned_u64 addr;
	__u32 length;
	__u32 lkey;
};

/*
 * A place of a send queue: opcode and flags are those of libibverbs. One that binds a memory window has the window's
 * new key in rkey, the region's in imm, and what it opens in remote_addr, compare_add (bytes) and swap (access).
 */
struct sluice_rdma_send {
	__aligned_u64 wr_id;
	__u32 opcode;
	__u32 flags;
	/* In network byte order; or a key to invalidate. */
	__u32 imm;
	/* Pieces; with IBV_SEND_INLINE the bytes that stand in their place. */
	__u32 sges;
	__aligned_u64 remote_addr;
	__aligned_u64 compare_add;
	__aligned_u64 swap;
	__u32 rkey;
	__u32 reserved[3];
	/* As many as the queue pair may have. */
	struct sluice_rdma_sge sge[];
};

struct sluice_rdma_receive {
	__aligned_u64 wr_id;
	__u32 sges;
	__u32 reserved;
	struct sluice_rdma_sge sge[];
};

/* IBV_WC_WITH_INV */
#define SLUICE_RDMA_WITH_INV	(1 << 3)

/* A place of a completion queue: as struct ibv_wc. */
struct sluice_rdma_completion {
	__aligned_u64 wr_id;
	__u32 status;
	__u32 opcode;
	__u32 bytes;
	/* In network byte order; or the key that was invalidated. */
	__u32 imm;
	__u32 qp_num;
	__u32 src_qp;
	__u32 flags;
	__u16 slid;
	__u16 pkey_index;
	__u32 reserved[6];
};

#endif
