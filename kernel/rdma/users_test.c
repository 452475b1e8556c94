// SPDX-License-Identifier: GPL-2.0
/*
 * sluice_rdma_test: a user in the kernel, at two devices of a guest. Loading it runs all of it, and fails with the line of
 * what was not so; nothing stays. It posts with interrupts off and from softirqs, and the one end lies to
 * the other one about the keys of memory that this opens and closes. For tests only: it is built with SR_TEST=1.
 */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <rdma/ib_verbs.h>

#define PAGES		5
/* Of the first byte that is lent in its page; so many behind the last one are not. */
#define EDGE		100U
#define LENGTH		((u32)(PAGES * PAGE_SIZE - 2 * EDGE))
#define WRS		64
#define MESSAGES	500U
/* Under way at a time. */
#define WINDOW		8U
#define PATIENCE	(120 * HZ)
#define FIRST_PSN	0xfffff0
#define ALL_ACCESS                                                                               \
	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ |                \
	 IB_ACCESS_REMOTE_ATOMIC)

#define CHECK(what)                                                                              \
	do {                                                                                     \
		if (!(what)) {                                                                   \
			pr_err("sluice_rdma_test: line %d: %s\n", __LINE__, #what);              \
			return -EIO;                                                             \
		}                                                                                \
	} while (0)

#define TRY(what)                                                                                \
	do {                                                                                     \
		if (what)                                                                        \
			return -EIO;                                                             \
	} while (0)

/* Something posted. */
struct job {
	struct ib_cqe cqe;
	struct completion done;
	struct ib_wc wc;
};

struct end {
	struct ib_device *device;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_qp *qp;
	struct ib_mr *mr;
	/* What it lends, and what was there before somebody lied. */
	u8 *pages[PAGES];
	struct scatterlist list[PAGES];
	u8 *before;
	/* What it writes from, and reads and receives to. */
	u8 *bytes;
	struct job sent;
	struct job received;
};

static struct ib_device *devices[2];

static void done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct job *job = container_of(wc->wr_cqe, struct job, cqe);

	job->wc = *wc;
	complete(&job->done);
}

static void begin(struct job *job)
{
	job->cqe.done = done;
	init_completion(&job->done);
}

/* How it ended; -1: not in time. */
static int end_of(struct job *job)
{
	return wait_for_completion_timeout(&job->done, PATIENCE) ? job->wc.status : -1;
}

static DEFINE_SPINLOCK(nobody_sleeps);

static int post(struct end *end, const struct ib_send_wr *wr)
{
	unsigned long flags;
	int err;

	spin_lock_irqsave(&nobody_sleeps, flags);
	err = ib_post_send(end->qp, wr, NULL);
	spin_unlock_irqrestore(&nobody_sleeps, flags);
	return err;
}

static struct ib_sge own(struct end *end, void *at, u32 bytes)
{
	struct ib_sge sge = {
		.addr = ib_dma_map_single(end->device, at, bytes, DMA_BIDIRECTIONAL),
		.length = bytes,
		.lkey = end->pd->local_dma_lkey,
	};

	return sge;
}

static int post_receive(struct end *end)
{
	struct ib_sge sge = own(end, end->bytes, LENGTH);
	struct ib_recv_wr wr = {
		.wr_cqe = &end->received.cqe,
		.sg_list = &sge,
		.num_sge = 1,
	};
	unsigned long flags;
	int err;

	begin(&end->received);
	spin_lock_irqsave(&nobody_sleeps, flags);
	err = ib_post_recv(end->qp, &wr, NULL);
	spin_unlock_irqrestore(&nobody_sleeps, flags);
	return err;
}

static int to_state(struct end *end, enum ib_qp_state state, u32 partner)
{
	struct ib_qp_attr attr = {
		.qp_state = state,
		.port_num = 1,
		.qp_access_flags = ALL_ACCESS,
		.path_mtu = IB_MTU_4096,
		.dest_qp_num = partner,
		.rq_psn = FIRST_PSN,
		.sq_psn = FIRST_PSN,
		.max_dest_rd_atomic = 4,
		.max_rd_atomic = 4,
		.min_rnr_timer = 1,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
	};
	int mask = IB_QP_STATE;

	attr.ah_attr.type = rdma_ah_find_type(end->device, 1);
	rdma_ah_set_port_num(&attr.ah_attr, 1);
	rdma_ah_set_dlid(&attr.ah_attr, 1);
	if (state == IB_QPS_INIT)
		mask |= IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_ACCESS_FLAGS;
	if (state == IB_QPS_RTR)
		mask |= IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER;
	if (state == IB_QPS_RTS)
		mask |= IB_QP_TIMEOUT | IB_QP_RETRY_CNT | IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
			IB_QP_MAX_QP_RD_ATOMIC;
	return ib_modify_qp(end->qp, &attr, mask);
}

static int connect_both(struct end *a, struct end *b)
{
	static const enum ib_qp_state states[] = { IB_QPS_RESET, IB_QPS_INIT, IB_QPS_RTR,
						   IB_QPS_RTS };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(states); i++) {
		CHECK(!to_state(a, states[i], b->qp->qp_num));
		CHECK(!to_state(b, states[i], a->qp->qp_num));
	}
	return 0;
}

static enum ib_qp_state state_of(struct end *end)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;

	return ib_query_qp(end->qp, &attr, IB_QP_STATE, &init) ? IB_QPS_RESET : attr.qp_state;
}

static int open_end(struct end *end, struct ib_device *device)
{
	struct ib_qp_init_attr init = {
		.cap = { .max_send_wr = WRS, .max_recv_wr = WRS, .max_send_sge = 4,
			 .max_recv_sge = 4 },
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
	};
	int i;

	end->device = device;
	begin(&end->sent);
	begin(&end->received);
	end->pd = ib_alloc_pd(device, 0);
	CHECK(!IS_ERR(end->pd));
	end->cq = ib_alloc_cq(device, end, 4 * WRS, 0, IB_POLL_SOFTIRQ);
	CHECK(!IS_ERR(end->cq));
	init.send_cq = end->cq;
	init.recv_cq = end->cq;
	end->qp = ib_create_qp(end->pd, &init);
	CHECK(!IS_ERR(end->qp));
	end->mr = ib_alloc_mr(end->pd, IB_MR_TYPE_MEM_REG, PAGES);
	CHECK(!IS_ERR(end->mr));
	end->bytes = kmalloc(LENGTH, GFP_KERNEL);
	end->before = kvmalloc(PAGES * PAGE_SIZE, GFP_KERNEL);
	CHECK(end->bytes && end->before);
	sg_init_table(end->list, PAGES);
	/* From the last to the first, so that neighbours are no neighbours. */
	for (i = PAGES - 1; i >= 0; i--) {
		end->pages[i] = (u8 *)get_zeroed_page(GFP_KERNEL);
		CHECK(end->pages[i]);
		sg_set_buf(&end->list[i], end->pages[i] + (i ? 0 : EDGE),
			   PAGE_SIZE - (i == 0 || i == PAGES - 1 ? EDGE : 0));
	}
	CHECK(ib_dma_map_sg(device, end->list, PAGES, DMA_BIDIRECTIONAL) == PAGES);
	return 0;
}

/* Those that are there, as an end may have been opened in part. */
static void close_end(struct end *end)
{
	int i;

	if (!IS_ERR_OR_NULL(end->qp)) {
		ib_drain_qp(end->qp);
		ib_destroy_qp(end->qp);
	}
	if (!IS_ERR_OR_NULL(end->mr))
		ib_dereg_mr(end->mr);
	if (!IS_ERR_OR_NULL(end->cq))
		ib_free_cq(end->cq);
	if (!IS_ERR_OR_NULL(end->pd))
		ib_dealloc_pd(end->pd);
	for (i = 0; i < PAGES; i++)
		free_page((unsigned long)end->pages[i]);
	kfree(end->bytes);
	kvfree(end->before);
	memset(end, 0, sizeof(*end));
}

static u8 *lent(struct end *end, u32 at)
{
	at += EDGE;
	return end->pages[at / PAGE_SIZE] + at % PAGE_SIZE;
}

static void remember(struct end *end)
{
	int i;

	for (i = 0; i < PAGES; i++)
		memcpy(end->before + i * PAGE_SIZE, end->pages[i], PAGE_SIZE);
}

static bool is_as_before(struct end *end)
{
	bool same = true;
	int i;

	for (i = 0; i < PAGES; i++)
		same = same && !memcmp(end->before + i * PAGE_SIZE, end->pages[i], PAGE_SIZE);
	return same;
}

static struct ib_reg_wr opening(struct end *end, int access)
{
	struct ib_reg_wr wr = {
		.wr = { .opcode = IB_WR_REG_MR, .send_flags = IB_SEND_SIGNALED,
			.wr_cqe = &end->sent.cqe },
		.mr = end->mr,
		.key = end->mr->rkey,
		.access = access,
	};

	begin(&end->sent);
	return wr;
}

/* How it ends to open what is lent, under another key than before. */
static int open_memory(struct end *end, int access)
{
	struct ib_reg_wr wr;

	ib_update_fast_reg_key(end->mr, ib_inc_rkey(end->mr->rkey));
	if (ib_map_mr_sg(end->mr, end->list, PAGES, NULL, PAGE_SIZE) != PAGES)
		return -1;
	wr = opening(end, access);
	return post(end, &wr.wr) ? -1 : end_of(&end->sent);
}

static struct ib_send_wr closing(struct end *end, u32 key)
{
	struct ib_send_wr wr = {
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
		.wr_cqe = &end->sent.cqe,
		.ex.invalidate_rkey = key,
	};

	begin(&end->sent);
	return wr;
}

static int close_memory(struct end *end, u32 key)
{
	struct ib_send_wr wr = closing(end, key);

	return post(end, &wr) ? -1 : end_of(&end->sent);
}

static int write_or_read(struct end *end, enum ib_wr_opcode opcode, u64 addr, u32 key, u32 bytes)
{
	struct ib_sge sge = own(end, end->bytes, bytes);
	struct ib_rdma_wr wr = {
		.wr = { .opcode = opcode, .send_flags = IB_SEND_SIGNALED,
			.wr_cqe = &end->sent.cqe, .sg_list = &sge, .num_sge = 1 },
		.remote_addr = addr,
		.rkey = key,
	};

	begin(&end->sent);
	return post(end, &wr.wr) ? -1 : end_of(&end->sent);
}

static int add_one(struct end *end, u64 addr, u32 key)
{
	struct ib_sge sge = own(end, end->bytes, sizeof(u64));
	struct ib_atomic_wr wr = {
		.wr = { .opcode = IB_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IB_SEND_SIGNALED,
			.wr_cqe = &end->sent.cqe, .sg_list = &sge, .num_sge = 1 },
		.remote_addr = addr,
		.compare_add = 1,
		.rkey = key,
	};

	begin(&end->sent);
	return post(end, &wr.wr) ? -1 : end_of(&end->sent);
}

static int send_and_close(struct end *end, u32 key)
{
	struct ib_sge sge = own(end, end->bytes, 16);
	struct ib_send_wr wr = {
		.opcode = IB_WR_SEND_WITH_INV,
		.send_flags = IB_SEND_SIGNALED,
		.wr_cqe = &end->sent.cqe,
		.sg_list = &sge,
		.num_sge = 1,
		.ex.invalidate_rkey = key,
	};

	begin(&end->sent);
	return post(end, &wr) ? -1 : end_of(&end->sent);
}

/* What it is to be, written and read by the other one. */
static int honest(struct end *a, struct end *b)
{
	u32 i;

	CHECK(open_memory(b, ALL_ACCESS) == IB_WC_SUCCESS);
	for (i = 0; i < LENGTH; i++)
		a->bytes[i] = i * 7 + i / 251;
	CHECK(write_or_read(a, IB_WR_RDMA_WRITE, b->mr->iova, b->mr->rkey, LENGTH) == IB_WC_SUCCESS);
	for (i = 0; i < LENGTH; i++)
		CHECK(*lent(b, i) == a->bytes[i]);
	for (i = 0; i < EDGE; i++)
		CHECK(!b->pages[0][i] && !b->pages[PAGES - 1][PAGE_SIZE - 1 - i]);
	*lent(b, LENGTH - 1) ^= 0xff;
	memset(a->bytes, 0, LENGTH);
	CHECK(write_or_read(a, IB_WR_RDMA_READ, b->mr->iova, b->mr->rkey, LENGTH) == IB_WC_SUCCESS);
	for (i = 0; i < LENGTH; i++)
		CHECK(*lent(b, i) == a->bytes[i]);
	/* The first that is a multiple of eight. */
	*(u64 *)lent(b, 4) = 41;
	CHECK(add_one(a, b->mr->iova + 4, b->mr->rkey) == IB_WC_SUCCESS);
	CHECK(*(u64 *)lent(b, 4) == 42 && *(u64 *)a->bytes == 41);
	/* The message that closes it says so. */
	CHECK(!post_receive(b));
	CHECK(send_and_close(a, b->mr->rkey) == IB_WC_SUCCESS);
	CHECK(end_of(&b->received) == IB_WC_SUCCESS);
	CHECK(b->received.wc.wc_flags & IB_WC_WITH_INVALIDATE);
	CHECK(b->received.wc.ex.invalidate_rkey == b->mr->rkey);
	/* That was in time, and here is no harm in saying it once more. */
	CHECK(close_memory(b, b->mr->rkey) == IB_WC_SUCCESS);
	return 0;
}

/* A message that ends a receive with an error, as what it asks for is not done. */
static int lies_in_message(struct end *a, struct end *b, u32 key)
{
	int status;

	if (post_receive(b))
		return -1;
	status = send_and_close(a, key);
	return end_of(&b->received) == IB_WC_WR_FLUSH_ERR ? status : -1;
}

/* Behind a lie: both have errors, and no byte is another one. */
static int refused(struct end *a, struct end *b, int status, int line)
{
	if (status == IB_WC_REM_ACCESS_ERR && is_as_before(b) && state_of(a) == IB_QPS_ERR &&
	    state_of(b) == IB_QPS_ERR)
		return connect_both(a, b);
	pr_err("sluice_rdma_test: line %d: status %d, states %d and %d, bytes %s\n", line, status,
	       state_of(a), state_of(b), is_as_before(b) ? "as before" : "changed");
	return -EIO;
}

#define REFUSED(status) TRY(refused(a, b, status, __LINE__))

static int lies(struct end *a, struct end *b, struct end *other)
{
	u64 at = b->mr->iova;
	u32 key, old = b->mr->rkey;

	memset(a->bytes, 0xee, LENGTH);
	remember(b);
	/* It was closed by a message, and by its owner. */
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, at, old, 8));
	CHECK(open_memory(b, ALL_ACCESS) == IB_WC_SUCCESS);
	key = b->mr->rkey;
	CHECK(key != old && key >> 8 == old >> 8);
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, at, old, 8));
	/* What a program has closed in its own turn. */
	CHECK(close_memory(b, key) == IB_WC_SUCCESS);
	REFUSED(write_or_read(a, IB_WR_RDMA_READ, at, key, 8));
	REFUSED(add_one(a, at + 4, key));
	CHECK(open_memory(b, ALL_ACCESS) == IB_WC_SUCCESS);
	key = b->mr->rkey;
	/* Neighbours of the key, and that of all of the kernel's memory. */
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, at, key ^ 1, 8));
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, at, key ^ BIT(8), 8));
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, at, b->pd->local_dma_lkey, 8));
	REFUSED(write_or_read(a, IB_WR_RDMA_READ, at, b->pd->local_dma_lkey, 8));
	/* In front, behind, across, around. */
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, at - 1, key, 8));
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, at + LENGTH - 7, key, 8));
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, at + LENGTH, key, 1));
	REFUSED(write_or_read(a, IB_WR_RDMA_READ, at + 1, key, LENGTH));
	REFUSED(write_or_read(a, IB_WR_RDMA_READ, U64_MAX - 3, key, 8));
	REFUSED(add_one(a, at + LENGTH - 4, key));
	/* A key that is somebody else's, whose owner is at the same device. */
	CHECK(open_memory(other, ALL_ACCESS) == IB_WC_SUCCESS);
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, other->mr->iova, other->mr->rkey, 8));
	/* Messages that close what they may not. */
	REFUSED(lies_in_message(a, b, key ^ 1));
	REFUSED(lies_in_message(a, b, other->mr->rkey));
	REFUSED(lies_in_message(a, b, b->pd->local_dma_lkey));
	CHECK(write_or_read(a, IB_WR_RDMA_READ, at, key, 8) == IB_WC_SUCCESS);
	memset(a->bytes, 0xee, LENGTH);
	CHECK(close_memory(b, key) == IB_WC_SUCCESS);
	REFUSED(lies_in_message(a, b, key));
	/* For less than they want to do. */
	CHECK(open_memory(b, IB_ACCESS_REMOTE_READ) == IB_WC_SUCCESS);
	key = b->mr->rkey;
	REFUSED(write_or_read(a, IB_WR_RDMA_WRITE, at, key, 8));
	REFUSED(add_one(a, at + 4, key));
	CHECK(close_memory(b, key) == IB_WC_SUCCESS);
	CHECK(open_memory(b, IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE) == IB_WC_SUCCESS);
	key = b->mr->rkey;
	REFUSED(write_or_read(a, IB_WR_RDMA_READ, at, key, 8));
	CHECK(close_memory(b, key) == IB_WC_SUCCESS);
	CHECK(open_memory(b, IB_ACCESS_LOCAL_WRITE) == IB_WC_SUCCESS);
	key = b->mr->rkey;
	REFUSED(lies_in_message(a, b, key));
	CHECK(close_memory(b, key) == IB_WC_SUCCESS);
	CHECK(close_memory(other, other->mr->rkey) == IB_WC_SUCCESS);
	CHECK(is_as_before(b));
	return 0;
}

/* What cannot be opened or closed ends the queue pair of who wanted it. */
static int own_faults(struct end *a, struct end *b, struct end *other)
{
	struct ib_reg_wr wr;

	CHECK(open_memory(b, ALL_ACCESS) == IB_WC_SUCCESS);
	CHECK(open_memory(b, ALL_ACCESS) == IB_WC_MW_BIND_ERR);
	CHECK(state_of(b) == IB_QPS_ERR);
	TRY(connect_both(a, b));
	/* The one before was open all the time. */
	ib_update_fast_reg_key(b->mr, b->mr->rkey - 1);
	CHECK(write_or_read(a, IB_WR_RDMA_WRITE, b->mr->iova, b->mr->rkey, 8) == IB_WC_SUCCESS);
	CHECK(close_memory(b, b->mr->rkey ^ 1) == IB_WC_MW_BIND_ERR);
	TRY(connect_both(a, b));
	CHECK(close_memory(b, other->mr->rkey) == IB_WC_MW_BIND_ERR);
	TRY(connect_both(a, b));
	CHECK(close_memory(b, b->pd->local_dma_lkey) == IB_WC_MW_BIND_ERR);
	TRY(connect_both(a, b));
	CHECK(close_memory(b, b->mr->rkey) == IB_WC_SUCCESS);
	wr = opening(other, ALL_ACCESS);
	wr.wr.wr_cqe = &b->sent.cqe;
	begin(&b->sent);
	CHECK(!post(b, &wr.wr) && end_of(&b->sent) == IB_WC_MW_BIND_ERR);
	TRY(connect_both(a, b));
	wr = opening(b, IB_ACCESS_MW_BIND);
	CHECK(post(b, &wr.wr) == -EINVAL);
	CHECK(IS_ERR(ib_alloc_mr(b->pd, IB_MR_TYPE_MEM_REG, 1U << 20)));
	CHECK(IS_ERR(ib_alloc_mr(b->pd, IB_MR_TYPE_SG_GAPS, PAGES)));
	return 0;
}

/* Pages of another size than the machine's are refused, and what is open stays what it is. */
static int page_sizes(struct end *a, struct end *b)
{
	static const unsigned int sizes[] = {
		0, 1, 512, PAGE_SIZE / 2, PAGE_SIZE + 1, 2 * PAGE_SIZE, SZ_2M, BIT(31),
	};
	u32 i;

	TRY(connect_both(a, b));
	CHECK(open_memory(b, ALL_ACCESS) == IB_WC_SUCCESS);
	for (i = 0; i < ARRAY_SIZE(sizes); i++)
		CHECK(ib_map_mr_sg(b->mr, b->list, PAGES, NULL, sizes[i]) == -EINVAL);
	for (i = 0; i < LENGTH; i++)
		a->bytes[i] = i * 13 + i / 251;
	CHECK(write_or_read(a, IB_WR_RDMA_WRITE, b->mr->iova, b->mr->rkey, LENGTH) == IB_WC_SUCCESS);
	for (i = 0; i < LENGTH; i++)
		CHECK(*lent(b, i) == a->bytes[i]);
	CHECK(close_memory(b, b->mr->rkey) == IB_WC_SUCCESS);
	return 0;
}

/*
 * A message from memory that is opened in front of it and closed behind it, which finds no receive at first and is
 * sent again; and one for which there is none in time has no harm from what follows.
 */
static int in_order(struct end *a, struct end *b)
{
	struct ib_sge sge = { .length = 1000 };
	struct ib_send_wr closes, sends = {
		.opcode = IB_WR_SEND,
		.sg_list = &sge,
		.num_sge = 1,
		.next = &closes,
	};
	struct ib_send_wr first = { .opcode = IB_WR_SEND };
	struct ib_reg_wr opens;
	u32 i;

	for (i = 0; i < LENGTH; i++)
		*lent(a, i) = i * 11;
	ib_update_fast_reg_key(a->mr, ib_inc_rkey(a->mr->rkey));
	CHECK(ib_map_mr_sg(a->mr, a->list, PAGES, NULL, PAGE_SIZE) == PAGES);
	opens = opening(a, IB_ACCESS_LOCAL_WRITE);
	opens.wr.send_flags = 0;
	opens.wr.next = &sends;
	first.next = &opens.wr;
	sge.addr = a->mr->iova + 2000;
	sge.lkey = a->mr->lkey;
	closes = closing(a, a->mr->rkey);
	CHECK(!post(a, &first));
	/* It does not end before them. */
	msleep(20);
	CHECK(!completion_done(&a->sent.done));
	CHECK(!post_receive(b));
	CHECK(end_of(&b->received) == IB_WC_SUCCESS && !b->received.wc.byte_len);
	msleep(20);
	CHECK(!completion_done(&a->sent.done));
	CHECK(!post_receive(b));
	CHECK(end_of(&b->received) == IB_WC_SUCCESS && b->received.wc.byte_len == 1000);
	for (i = 0; i < 1000; i++)
		CHECK(b->bytes[i] == (u8)((2000 + i) * 11));
	CHECK(end_of(&a->sent) == IB_WC_SUCCESS && a->sent.wc.opcode == IB_WC_LOCAL_INV);
	CHECK(a->sent.wc.qp == a->qp);
	/* It is closed for its owner as well. */
	begin(&a->sent);
	sends.next = NULL;
	sends.wr_cqe = &a->sent.cqe;
	CHECK(!post_receive(b));
	CHECK(!post(a, &sends) && end_of(&a->sent) == IB_WC_LOC_PROT_ERR);
	return connect_both(a, b);
}

struct side;

struct slot {
	struct ib_cqe cqe;
	struct side *side;
	u64 word;
};

/* One who answers each message from a softirq. */
struct side {
	struct end *end;
	bool begins;
	struct slot in[WRS];
	struct ib_cqe sent;
	u64 out[WRS];
	u64 heard;
	int wrongs;
	struct completion over;
};

static void say(struct side *side, u64 word)
{
	struct ib_sge sge = own(side->end, &side->out[word % WRS], sizeof(u64));
	struct ib_send_wr wr = {
		.opcode = IB_WR_SEND,
		.wr_cqe = &side->sent,
		.send_flags = word % 4 ? 0 : IB_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = 1,
	};

	side->out[word % WRS] = word;
	if (post(side->end, &wr))
		side->wrongs++;
}

static int listen(struct side *side, struct slot *slot)
{
	struct ib_sge sge = own(side->end, &slot->word, sizeof(slot->word));
	struct ib_recv_wr wr = { .wr_cqe = &slot->cqe, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(side->end->qp, &wr, NULL);
}

static void said(struct ib_cq *cq, struct ib_wc *wc)
{
	struct side *side = container_of(wc->wr_cqe, struct side, sent);

	if (wc->status)
		side->wrongs++;
}

static void heard(struct ib_cq *cq, struct ib_wc *wc)
{
	struct slot *slot = container_of(wc->wr_cqe, struct slot, cqe);
	struct side *side = slot->side;
	u64 word = slot->word;

	/* The rest is told that it is over. */
	if (side->heard == MESSAGES)
		return;
	if (wc->status || word != side->heard || listen(side, slot))
		side->wrongs++;
	side->heard++;
	if (!side->begins)
		say(side, word);
	else if (word + WINDOW < MESSAGES)
		say(side, word + WINDOW);
	if (side->heard == MESSAGES || side->wrongs)
		complete(&side->over);
}

static int begin_side(struct side *side, struct end *end)
{
	u32 i;

	memset(side, 0, sizeof(*side));
	side->end = end;
	side->sent.done = said;
	init_completion(&side->over);
	for (i = 0; i < WRS; i++) {
		side->in[i].side = side;
		side->in[i].cqe.done = heard;
		CHECK(!listen(side, &side->in[i]));
	}
	return 0;
}

/* Not on a stack: devices are given its addresses. */
static struct side *sides;

static int from_softirqs(struct end *a, struct end *b)
{
	u64 word;

	TRY(connect_both(a, b));
	TRY(begin_side(&sides[0], a));
	TRY(begin_side(&sides[1], b));
	sides[0].begins = true;
	for (word = 0; word < WINDOW; word++)
		say(&sides[0], word);
	CHECK(wait_for_completion_timeout(&sides[0].over, PATIENCE));
	CHECK(wait_for_completion_timeout(&sides[1].over, PATIENCE));
	CHECK(!sides[0].wrongs && !sides[1].wrongs);
	/* These have receives of the sides', which are to end before others are posted. */
	ib_drain_qp(a->qp);
	ib_drain_qp(b->qp);
	return connect_both(a, b);
}

static int run(struct end *a, struct end *b, struct end *other, struct end *partner)
{
	TRY(open_end(a, devices[0]));
	TRY(open_end(b, devices[1]));
	TRY(open_end(other, devices[1]));
	TRY(open_end(partner, devices[0]));
	TRY(connect_both(a, b));
	TRY(connect_both(other, partner));
	TRY(honest(a, b));
	TRY(lies(a, b, other));
	TRY(own_faults(a, b, other));
	TRY(page_sizes(a, b));
	TRY(in_order(a, b));
	TRY(from_softirqs(a, b));
	/* All of it within one device. */
	TRY(connect_both(b, other));
	TRY(connect_both(a, partner));
	TRY(honest(b, other));
	TRY(in_order(a, partner));
	return from_softirqs(b, other);
}

static int add(struct ib_device *device)
{
	if (strncmp(dev_name(&device->dev), "sluice", 6))
		return -EOPNOTSUPP;
	if (!devices[0])
		devices[0] = device;
	else if (!devices[1])
		devices[1] = device;
	return 0;
}

static void remove(struct ib_device *device, void *data)
{
}

static struct ib_client client = {
	.name = "sluice_rdma_test",
	.add = add,
	.remove = remove,
};

static int __init test_init(void)
{
	struct end *ends = kcalloc(4, sizeof(*ends), GFP_KERNEL);
	int i, err;

	sides = kcalloc(2, sizeof(*sides), GFP_KERNEL);
	err = ends && sides ? ib_register_client(&client) : -ENOMEM;
	if (!err) {
		err = devices[1] ? run(&ends[0], &ends[1], &ends[2], &ends[3]) : -ENODEV;
		for (i = 0; i < 4; i++)
			close_end(&ends[i]);
		ib_unregister_client(&client);
	}
	kfree(sides);
	kfree(ends);
	return err;
}

static void __exit test_exit(void)
{
}

module_init(test_init);
module_exit(test_exit);

MODULE_DESCRIPTION("Test of RDMA over windows, as a user in the kernel");
MODULE_LICENSE("GPL");
