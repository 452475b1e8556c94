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
#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define DEPTH 64

#define CHECK(what)                                                                             \
	do {                                                                                    \
		if (!(what)) {                                                                  \
			printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);          \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

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

static inline struct ibv_qp *new_qp(struct end *end, struct ibv_pd *pd)
{
	struct ibv_qp_init_attr init = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4,
			 .max_recv_sge = 4 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static inline void open_end(struct end *end, const char *name)
{
	memset(end, 0, sizeof(*end));
	end->context = open_device(name);
	end->pd = ibv_alloc_pd(end->context);
	CHECK(end->pd);
	end->channel = ibv_create_comp_channel(end->context);
	CHECK(end->channel);
	end->cq = ibv_create_cq(end->context, 4 * DEPTH, NULL, end->channel, 0);
	CHECK(end->cq);
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

static inline int to_rts(struct ibv_qp *qp, int rnr_retry)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 3,
		.rnr_retry = rnr_retry,
		.sq_psn = 0xfffff0,
		.max_rd_atomic = 4,
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
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

/* The next completion; half a minute at most. */
static inline struct ibv_wc completion(struct end *end)
{
	time_t until = time(NULL) + 30;
	struct ibv_wc wc;
	int count;

	do
		count = ibv_poll_cq(end->cq, 1, &wc);
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

static inline int post(struct end *end, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;

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

	CHECK(poll(&wait, 1, 10000) == 1);
	CHECK(!ibv_get_async_event(end->context, &event));
	ibv_ack_async_event(&event);
	if (event.event_type == IBV_EVENT_PORT_ACTIVE || event.event_type == IBV_EVENT_PORT_ERR) {
		event_is(end, type);
		return;
	}
	CHECK(event.event_type == type && event.element.qp == end->qp);
}

#endif
