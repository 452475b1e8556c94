/* SPDX-License-Identifier: GPL-2.0 */
/* One end of a connection, for programs of the tests: what it has, and what is done with it. */
#ifndef ENDS_H
#define ENDS_H

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define BYTES (4 << 20)
#define ALL_ACCESS                                                                              \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |             \
	 IBV_ACCESS_REMOTE_ATOMIC)
#define DEPTH 64
#define EXTENDED_OPS                                                                            \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |  \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |                               \
	 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |               \
	 IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV)
/* Of datagrams, and what stands in front of them. */
#define QKEY 0x11111111
#define GRH 40

#define CHECK(what)                                                                             \
	do {                                                                                    \
		if (!(what)) {                                                                  \
			printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);          \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

/* With EXTENDED=1: queue pairs and completion queues are extended ones where there are such. */
static inline int is_extended_wanted(void)
{
	return getenv("EXTENDED") != NULL;
}

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *bytes;
};

static uint32_t next_random = 12345;

static inline uint32_t random_number(void)
{
	next_random = next_random * 1664525 + 1013904223;
	return next_random >> 8;
}

static inline void fill(uint8_t *bytes, size_t count)
{
	while (count--)
		*bytes++ = random_number();
}

static inline struct ibv_context *open_device(const char *name)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list = ibv_get_device_list(NULL), **at;

	CHECK(list);
	for (at = list; *at; at++)
		if (!strcmp(ibv_get_device_name(*at), name))
			context = ibv_open_device(*at);
	ibv_free_device_list(list);
	CHECK(context);
	return context;
}

static inline struct ibv_qp *new_qp_of(struct end *end, struct ibv_pd *pd, enum ibv_qp_type type,
				       struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.srq = srq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4,
			 .max_recv_sge = 4 },
		.qp_type = type,
	};
	struct ibv_qp_init_attr_ex extended = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.srq = srq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4,
			 .max_recv_sge = 4, .max_inline_data = 64 },
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = EXTENDED_OPS,
	};
	struct ibv_qp *qp = is_extended_wanted() && type == IBV_QPT_RC ?
				    ibv_create_qp_ex(end->context, &extended) :
				    ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static inline struct ibv_qp *new_qp(struct end *end, struct ibv_pd *pd)
{
	return new_qp_of(end, pd, IBV_QPT_RC, NULL);
}

static inline struct ibv_cq *new_cq(struct end *end, int cqe)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = cqe,
		.channel = end->channel,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};
	struct ibv_cq *cq = is_extended_wanted() ?
				    (struct ibv_cq *)ibv_create_cq_ex(end->context, &init) :
				    ibv_create_cq(end->context, cqe, NULL, end->channel, 0);

	CHECK(cq);
	return cq;
}

static inline void open_end(struct end *end, const char *name)
{
	memset(end, 0, sizeof(*end));
	end->context = open_device(name);
	end->pd = ibv_alloc_pd(end->context);
	CHECK(end->pd);
	end->channel = ibv_create_comp_channel(end->context);
	CHECK(end->channel);
	end->cq = new_cq(end, 4 * DEPTH);
	end->bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(end->bytes != MAP_FAILED);
	end->mr = ibv_reg_mr(end->pd, end->bytes, BYTES, ALL_ACCESS);
	CHECK(end->mr);
	end->qp = new_qp(end, end->pd);
}

static inline void close_end(struct end *end)
{
	CHECK(!end->qp || !ibv_destroy_qp(end->qp));
	CHECK(!ibv_destroy_cq(end->cq));
	CHECK(!ibv_destroy_comp_channel(end->channel));
	CHECK(!ibv_dereg_mr(end->mr));
	CHECK(!ibv_dealloc_pd(end->pd));
	CHECK(!ibv_close_device(end->context));
	munmap(end->bytes, BYTES);
}

static inline int to_init(struct ibv_qp *qp, int access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = access,
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS);
}

static inline int to_rtr(struct ibv_qp *qp, uint32_t partner)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = partner,
		.rq_psn = 0xfffff0,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = { .dlid = 1, .port_num = 1 },
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

/* @timeout: as in struct ibv_qp_attr, four times of which a peer is waited for. */
static inline int to_rts_patient(struct ibv_qp *qp, int rnr_retry, int timeout)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = timeout,
		.retry_cnt = 3,
		.rnr_retry = rnr_retry,
		.sq_psn = 0xfffff0,
		.max_rd_atomic = 4,
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline int to_rts(struct ibv_qp *qp, int rnr_retry)
{
	return to_rts_patient(qp, rnr_retry, 14);
}

static inline int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

/* Of another kind, not connected. */
static inline void change_kind(struct end *end, enum ibv_qp_type type)
{
	CHECK(!ibv_destroy_qp(end->qp));
	end->qp = new_qp_of(end, end->pd, type, NULL);
}

static inline int to_rtr_uc(struct ibv_qp *qp, uint32_t partner)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = partner,
		.rq_psn = 0xfffff0,
		.ah_attr = { .dlid = 1, .port_num = 1 },
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
}

static inline int to_rts_psn(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = 0xfffff0 };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static inline void to_datagrams(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	CHECK(!to_state(qp, IBV_QPS_RTR));
	CHECK(!to_rts_psn(qp));
}

static inline enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

static inline void connect_with(struct end *a, struct end *b, int access, int rnr_retry)
{
	CHECK(!to_state(a->qp, IBV_QPS_RESET) && !to_state(b->qp, IBV_QPS_RESET));
	CHECK(!to_init(a->qp, access) && !to_init(b->qp, access));
	CHECK(!to_rtr(a->qp, b->qp->qp_num) && !to_rtr(b->qp, a->qp->qp_num));
	CHECK(!to_rts(a->qp, rnr_retry) && !to_rts(b->qp, rnr_retry));
}

static inline void connect_both(struct end *a, struct end *b)
{
	connect_with(a, b, ALL_ACCESS, 7);
}

/* Field by field. */
static inline int poll_extended(struct ibv_cq_ex *cq, struct ibv_wc *wc)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int err = ibv_start_poll(cq, &attr);

	if (err)
		return err == ENOENT ? 0 : -1;
	wc->wr_id = cq->wr_id;
	wc->status = cq->status;
	wc->opcode = ibv_wc_read_opcode(cq);
	wc->vendor_err = ibv_wc_read_vendor_err(cq);
	wc->byte_len = ibv_wc_read_byte_len(cq);
	wc->imm_data = ibv_wc_read_imm_data(cq);
	wc->qp_num = ibv_wc_read_qp_num(cq);
	wc->src_qp = ibv_wc_read_src_qp(cq);
	wc->wc_flags = ibv_wc_read_wc_flags(cq);
	ibv_end_poll(cq);
	return 1;
}

/* The next completion; a minute and a half at most. */
static inline struct ibv_wc completion(struct end *end)
{
	time_t until = time(NULL) + 90;
	struct ibv_wc wc;
	int count;

	do
		count = is_extended_wanted() ? poll_extended((struct ibv_cq_ex *)end->cq, &wc) :
					       ibv_poll_cq(end->cq, 1, &wc);
	while (!count && time(NULL) < until);
	CHECK(count == 1);
	return wc;
}

static inline void completes(struct end *end, uint64_t wr_id, enum ibv_wc_status status, int line)
{
	struct ibv_wc wc = completion(end);

	if (wc.wr_id == wr_id && wc.status == status && wc.qp_num == end->qp->qp_num)
		return;
	printf("line %d: wr_id %d status %d of %#x\n", line, (int)wc.wr_id, wc.status, wc.qp_num);
	exit(1);
}

/* A message that came, whatever it brought; said where it is another one. */
static inline struct ibv_wc received(struct end *end, uint64_t wr_id, uint32_t bytes, uint32_t from,
				     int line)
{
	struct ibv_wc wc = completion(end);

	if (wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS && wc.qp_num == end->qp->qp_num &&
	    wc.byte_len == bytes && wc.src_qp == from)
		return wc;
	printf("line %d: wr_id %d status %d opcode %d of %#x, %u bytes from %#x; not wr_id %d, %u bytes from %#x\n",
	       line, (int)wc.wr_id, wc.status, wc.opcode, wc.qp_num, wc.byte_len, wc.src_qp,
	       (int)wr_id, bytes, from);
	exit(1);
}

#define RECEIVED(end, wr_id, bytes, from) received(end, wr_id, bytes, from, __LINE__)

#define COMPLETES(end, wr_id, status) completes(end, wr_id, status, __LINE__)

static inline struct ibv_sge piece(struct end *end, size_t at, uint32_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)end->bytes + at,
		.length = length,
		.lkey = end->mr->lkey,
	};

	return sge;
}

static inline int post_recv(struct end *end, uint64_t wr_id, struct ibv_sge *sges, int count)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = sges, .num_sge = count }, *bad;

	return ibv_post_recv(end->qp, &wr, &bad);
}

static inline struct ibv_send_wr request(uint64_t wr_id, enum ibv_wr_opcode opcode, struct ibv_sge *sges,
				  int count)
{
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.opcode = opcode,
		.sg_list = sges,
		.num_sge = count,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htobe32(0x12345678),
	};

	return wr;
}

static inline void build_request(struct ibv_qp_ex *qp, const struct ibv_send_wr *wr)
{
	uint64_t addr = wr->wr.rdma.remote_addr;
	uint32_t rkey = wr->wr.rdma.rkey;

	qp->wr_id = wr->wr_id;
	qp->wr_flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(qp, rkey, addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(qp, rkey, addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(qp, rkey, addr);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(qp, wr->imm_data);
		break;
	case IBV_WR_SEND_WITH_INV:
		ibv_wr_send_inv(qp, wr->invalidate_rkey);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
				      wr->wr.atomic.compare_add, wr->wr.atomic.swap);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
					wr->wr.atomic.compare_add);
		break;
	case IBV_WR_LOCAL_INV:
		ibv_wr_local_inv(qp, wr->invalidate_rkey);
		break;
	case IBV_WR_BIND_MW:
		ibv_wr_bind_mw(qp, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		break;
	default:
		ibv_wr_send(qp);
	}
	ibv_wr_set_sge_list(qp, wr->num_sge, wr->sg_list);
}

static inline int post(struct end *end, struct ibv_send_wr wr)
{
	struct ibv_qp_ex *extended = is_extended_wanted() ? ibv_qp_to_qp_ex(end->qp) : NULL;
	struct ibv_send_wr *bad;

	if (extended) {
		ibv_wr_start(extended);
		build_request(extended, &wr);
		return ibv_wr_complete(extended);
	}
	return ibv_post_send(end->qp, &wr, &bad);
}

static inline struct ibv_send_wr remote(struct ibv_send_wr wr, struct end *peer, int64_t at)
{
	wr.wr.rdma.remote_addr = (uintptr_t)peer->bytes + at;
	wr.wr.rdma.rkey = peer->mr->rkey;
	return wr;
}

static inline void event_is(struct end *end, enum ibv_event_type type)
{
	struct pollfd wait = { .fd = end->context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	CHECK(poll(&wait, 1, 90000) == 1);
	CHECK(!ibv_get_async_event(end->context, &event));
	ibv_ack_async_event(&event);
	if (event.event_type == IBV_EVENT_PORT_ACTIVE || event.event_type == IBV_EVENT_PORT_ERR ||
	    event.event_type == IBV_EVENT_COMM_EST) {
		event_is(end, type);
		return;
	}
	CHECK(event.event_type == type && event.element.qp == end->qp);
}

/*
 * What a stranger can ask for: each ends the request with this status, the queue pairs with errors, and
 * changes no byte. They are connected.
 */
static inline void refused_now(struct end *a, struct end *b, struct ibv_send_wr wr, enum ibv_wc_status status,
			       enum ibv_event_type event, int line)
{
	struct ibv_sge sge = piece(b, 2 << 20, 16);
	uint8_t *before = malloc(BYTES);

	CHECK(before);
	memcpy(before, b->bytes, BYTES);
	CHECK(!post_recv(b, 7, &sge, 1));
	wr.wr_id = 1;
	CHECK(!post(a, wr));
	wr = request(2, IBV_WR_SEND, NULL, 0);
	/* It may have ended by now, and is flushed in any case. */
	CHECK(!post(a, wr));
	completes(a, 1, status, line);
	COMPLETES(a, 2, IBV_WC_WR_FLUSH_ERR);
	COMPLETES(b, 7, IBV_WC_WR_FLUSH_ERR);
	event_is(b, event);
	CHECK(state_of(a->qp) == IBV_QPS_ERR && state_of(b->qp) == IBV_QPS_ERR);
	CHECK(!memcmp(before, b->bytes, BYTES));
	free(before);
}

static inline void refused(struct end *a, struct end *b, struct ibv_send_wr wr, int access,
			   enum ibv_wc_status status, enum ibv_event_type event, int line)
{
	connect_with(a, b, access, 7);
	refused_now(a, b, wr, status, event, line);
}

#define REFUSED(wr, access, status, event) refused(a, b, wr, access, status, event, __LINE__)

struct test_command {
	const char *name;
	void (*run)(struct end *a, struct end *b);
};

/* `PROGRAM COMMAND DEVICE DEVICE` */
static inline int run_command(const struct test_command *commands, size_t known, int count, char **words)
{
	struct end a, b;
	size_t i;

	if (count != 4)
		return 2;
	for (i = 0; i < known; i++) {
		if (strcmp(words[1], commands[i].name))
			continue;
		open_end(&a, words[2]);
		open_end(&b, words[3]);
		commands[i].run(&a, &b);
		close_end(&a);
		close_end(&b);
		return 0;
	}
	return 2;
}

#endif
