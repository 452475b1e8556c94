/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Work requests that a program builds call by call (ibv_wr_post(3)), and completions that it reads field by
 * field (ibv_create_cq_ex(3)). Both are the requests and completions of queues.h, put together here and taken
 * apart: there is one way to post, with one set of checks.
 */
#ifndef EXTENDED_H
#define EXTENDED_H

#include "queues.h"

#define SEND_OPS                                                                                \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |  \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV)
/* Of RC, besides. */
#define SEND_OPS_RC                                                                             \
	(SEND_OPS | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |               \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV)
/* What completions have; there are no clocks, VLANs, flow tags and matched tags. */
#define COMPLETION_FIELDS                                                                       \
	(IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |                  \
	 IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL |                       \
	 IBV_WC_EX_WITH_DLID_PATH_BITS)
#define INLINE_ALIGN 8

struct extended_qp {
	struct fast_qp fast;
	/* From wr_start on. */
	pthread_mutex_t building;
	struct ibv_send_wr *requests;
	struct ibv_sge *sges;
	size_t sges_each;
	/* Bytes that requests carry, which may change when the call that names them is over. */
	uint8_t *bytes;
	size_t bytes_each;
	uint32_t count;
	/* Of what was built since; the first is what the program is told. */
	int err;
};

static inline struct extended_qp *to_extended(struct ibv_qp_ex *qp)
{
	return (struct extended_qp *)qp;
}

static inline void build_wrong(struct extended_qp *qp, int err)
{
	if (!qp->err)
		qp->err = err;
}

/* The request that setters are about; NULL: there is none, and an error was noted. */
static inline struct ibv_send_wr *last_request(struct extended_qp *qp)
{
	if (qp->err)
		return NULL;
	if (!qp->count) {
		build_wrong(qp, EINVAL);
		return NULL;
	}
	return &qp->requests[qp->count - 1];
}

static inline struct ibv_send_wr *build(struct ibv_qp_ex *base, enum ibv_wr_opcode opcode)
{
	struct extended_qp *qp = to_extended(base);
	struct ibv_send_wr *wr;

	if (qp->err)
		return NULL;
	if (qp->count == qp->fast.sends_max) {
		build_wrong(qp, ENOMEM);
		return NULL;
	}
	wr = &qp->requests[qp->count];
	memset(wr, 0, sizeof(*wr));
	wr->wr_id = base->wr_id;
	/* Whether bytes are in it is said by who sets them. */
	wr->send_flags = base->wr_flags & ~IBV_SEND_INLINE;
	wr->opcode = opcode;
	wr->sg_list = &qp->sges[qp->count * qp->sges_each];
	if (qp->count)
		wr[-1].next = wr;
	qp->count++;
	return wr;
}

static inline struct ibv_send_wr *build_remote(struct ibv_qp_ex *base, enum ibv_wr_opcode opcode,
					       uint32_t rkey, uint64_t addr)
{
	struct ibv_send_wr *wr = build(base, opcode);

	if (wr) {
		wr->wr.rdma.rkey = rkey;
		wr->wr.rdma.remote_addr = addr;
	}
	return wr;
}

static inline void build_atomic(struct ibv_qp_ex *base, enum ibv_wr_opcode opcode, uint32_t rkey,
				uint64_t addr, uint64_t compare_add, uint64_t swap)
{
	struct ibv_send_wr *wr = build(base, opcode);

	if (wr) {
		wr->wr.atomic.rkey = rkey;
		wr->wr.atomic.remote_addr = addr;
		wr->wr.atomic.compare_add = compare_add;
		wr->wr.atomic.swap = swap;
	}
}

static inline void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t compare,
				     uint64_t swap)
{
	build_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}

static inline void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t add)
{
	build_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}

static inline void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr)
{
	build_remote(qp, IBV_WR_RDMA_READ, rkey, addr);
}

static inline void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr)
{
	build_remote(qp, IBV_WR_RDMA_WRITE, rkey, addr);
}

static inline void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct ibv_send_wr *wr = build_remote(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr);

	if (wr)
		wr->imm_data = imm;
}

static inline void wr_send(struct ibv_qp_ex *qp)
{
	build(qp, IBV_WR_SEND);
}

static inline void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm)
{
	struct ibv_send_wr *wr = build(qp, IBV_WR_SEND_WITH_IMM);

	if (wr)
		wr->imm_data = imm;
}

static inline void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
	struct ibv_send_wr *wr = build(qp, IBV_WR_SEND_WITH_INV);

	if (wr)
		wr->invalidate_rkey = rkey;
}

static inline void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey,
			      const struct ibv_mw_bind_info *info)
{
	struct ibv_send_wr *wr = build(qp, IBV_WR_BIND_MW);

	if (!wr)
		return;
	wr->bind_mw.mw = mw;
	wr->bind_mw.rkey = rkey;
	wr->bind_mw.bind_info = *info;
}

static inline void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
	struct ibv_send_wr *wr = build(qp, IBV_WR_LOCAL_INV);

	if (wr)
		wr->invalidate_rkey = rkey;
}

/* What the program did not ask for when it made the queue pair, and would not have got. */
static inline void wr_send_tso(struct ibv_qp_ex *qp, void *header, uint16_t header_bytes, uint16_t mss)
{
	(void)header, (void)header_bytes, (void)mss;
	build_wrong(to_extended(qp), EOPNOTSUPP);
}

static inline void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	(void)ah, (void)qpn, (void)qkey;
	build_wrong(to_extended(qp), EOPNOTSUPP);
}

static inline void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t srqn)
{
	(void)srqn;
	build_wrong(to_extended(qp), EOPNOTSUPP);
}

static inline void wr_set_sge_list(struct ibv_qp_ex *base, size_t count, const struct ibv_sge *sges)
{
	struct extended_qp *qp = to_extended(base);
	struct ibv_send_wr *wr = last_request(qp);

	if (!wr)
		return;
	if (count > qp->fast.send_sges_max) {
		build_wrong(qp, EINVAL);
		return;
	}
	memcpy(wr->sg_list, sges, count * sizeof(*sges));
	wr->num_sge = count;
	wr->send_flags &= ~IBV_SEND_INLINE;
}

static inline void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };

	/* A piece of nothing is none. */
	wr_set_sge_list(qp, length != 0, &sge);
}

static inline void wr_set_inline_data_list(struct ibv_qp_ex *base, size_t count,
					   const struct ibv_data_buf *pieces)
{
	struct extended_qp *qp = to_extended(base);
	struct ibv_send_wr *wr = last_request(qp);
	size_t length = 0, i;
	uint8_t *to;

	if (!wr)
		return;
	to = qp->bytes + (size_t)(qp->count - 1) * qp->bytes_each;
	for (i = 0; i < count; i++) {
		if (pieces[i].length > qp->fast.inline_max - length) {
			build_wrong(qp, EINVAL);
			return;
		}
		memcpy(to + length, pieces[i].addr, pieces[i].length);
		length += pieces[i].length;
	}
	wr->sg_list[0] = (struct ibv_sge){ .addr = (uintptr_t)to, .length = length };
	wr->num_sge = length != 0;
	wr->send_flags |= IBV_SEND_INLINE;
}

static inline void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	struct ibv_data_buf piece = { .addr = addr, .length = length };

	wr_set_inline_data_list(qp, 1, &piece);
}

static inline void wr_start(struct ibv_qp_ex *base)
{
	struct extended_qp *qp = to_extended(base);

	pthread_mutex_lock(&qp->building);
	qp->count = 0;
	qp->err = 0;
}

/* All of them, or none. */
static inline int wr_complete(struct ibv_qp_ex *base)
{
	struct extended_qp *qp = to_extended(base);
	struct ibv_send_wr *bad;
	int err = qp->err;

	if (!err && qp->count)
		err = post_send_whole(&base->qp_base, qp->requests, &bad);
	pthread_mutex_unlock(&qp->building);
	return err;
}

static inline void wr_abort(struct ibv_qp_ex *base)
{
	pthread_mutex_unlock(&to_extended(base)->building);
}

static inline void forget_extended(struct extended_qp *qp)
{
	pthread_mutex_destroy(&qp->building);
	free(qp->requests);
	free(qp->sges);
	free(qp->bytes);
}

/* False: there is no memory. */
static inline int extend_qp(struct extended_qp *qp)
{
	struct ibv_qp_ex *to = &qp->fast.qp.qp_ex;
	size_t places = qp->fast.sends_max;

	pthread_mutex_init(&qp->building, NULL);
	qp->bytes_each = (qp->fast.inline_max + INLINE_ALIGN - 1) / INLINE_ALIGN * INLINE_ALIGN;
	qp->requests = calloc(places, sizeof(*qp->requests));
	/* One at least, for bytes. */
	qp->sges_each = qp->fast.send_sges_max ? qp->fast.send_sges_max : 1;
	qp->sges = calloc(places * qp->sges_each, sizeof(*qp->sges));
	qp->bytes = calloc(places, qp->bytes_each ? qp->bytes_each : 1);
	if (!qp->requests || !qp->sges || !qp->bytes) {
		forget_extended(qp);
		return 0;
	}
	to->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	to->wr_atomic_fetch_add = wr_atomic_fetch_add;
	to->wr_bind_mw = wr_bind_mw;
	to->wr_local_inv = wr_local_inv;
	to->wr_rdma_read = wr_rdma_read;
	to->wr_rdma_write = wr_rdma_write;
	to->wr_rdma_write_imm = wr_rdma_write_imm;
	to->wr_send = wr_send;
	to->wr_send_imm = wr_send_imm;
	to->wr_send_inv = wr_send_inv;
	to->wr_send_tso = wr_send_tso;
	to->wr_set_ud_addr = wr_set_ud_addr;
	to->wr_set_xrc_srqn = wr_set_xrc_srqn;
	to->wr_set_inline_data = wr_set_inline_data;
	to->wr_set_inline_data_list = wr_set_inline_data_list;
	to->wr_set_sge = wr_set_sge;
	to->wr_set_sge_list = wr_set_sge_list;
	to->wr_start = wr_start;
	to->wr_complete = wr_complete;
	to->wr_abort = wr_abort;
	say_extended(&qp->fast.qp);
	return 1;
}

/* EOPNOTSUPP: what there is not. */
static inline int check_extended_qp(const struct ibv_qp_init_attr_ex *attr)
{
	uint64_t ops = attr->qp_type == IBV_QPT_RC ? SEND_OPS_RC : SEND_OPS;

	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD))
		return EINVAL;
	if (attr->comp_mask & ~(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
		return EOPNOTSUPP;
	return attr->send_ops_flags & ~ops ? EOPNOTSUPP : 0;
}

static inline struct fast_cq *from_extended(struct ibv_cq_ex *cq)
{
	return (struct fast_cq *)cq;
}

static inline int next_poll(struct ibv_cq_ex *base)
{
	struct fast_cq *cq = from_extended(base);
	int found = fast_poll_cq(ibv_cq_ex_to_cq(base), 1, &cq->read);

	if (found != 1)
		return found ? EIO : ENOENT;
	base->wr_id = cq->read.wr_id;
	base->status = cq->read.status;
	return 0;
}

/* Who looks has the queue until the end of the look; without one there is nothing to end. */
static inline int start_poll(struct ibv_cq_ex *base, struct ibv_poll_cq_attr *attr)
{
	struct fast_cq *cq = from_extended(base);
	int err;

	if (attr->comp_mask)
		return EINVAL;
	pthread_mutex_lock(&cq->reading);
	err = next_poll(base);
	if (err)
		pthread_mutex_unlock(&cq->reading);
	return err;
}

static inline void end_poll(struct ibv_cq_ex *base)
{
	pthread_mutex_unlock(&from_extended(base)->reading);
}

#define READS(name, type, field)                                                                \
	static inline type read_##name(struct ibv_cq_ex *base)                                  \
	{                                                                                       \
		return from_extended(base)->read.field;                                         \
	}

READS(opcode, enum ibv_wc_opcode, opcode)
READS(vendor_err, uint32_t, vendor_err)
READS(byte_len, uint32_t, byte_len)
READS(imm_data, __be32, imm_data)
READS(qp_num, uint32_t, qp_num)
READS(src_qp, uint32_t, src_qp)
READS(wc_flags, unsigned int, wc_flags)
READS(slid, uint32_t, slid)
READS(sl, uint8_t, sl)
READS(dlid_path_bits, uint8_t, dlid_path_bits)

static inline void extend_cq(struct fast_cq *cq)
{
	pthread_mutex_init(&cq->reading, NULL);
	cq->cq.start_poll = start_poll;
	cq->cq.next_poll = next_poll;
	cq->cq.end_poll = end_poll;
	cq->cq.read_opcode = read_opcode;
	cq->cq.read_vendor_err = read_vendor_err;
	cq->cq.read_byte_len = read_byte_len;
	cq->cq.read_imm_data = read_imm_data;
	cq->cq.read_qp_num = read_qp_num;
	cq->cq.read_src_qp = read_src_qp;
	cq->cq.read_wc_flags = read_wc_flags;
	cq->cq.read_slid = read_slid;
	cq->cq.read_sl = read_sl;
	cq->cq.read_dlid_path_bits = read_dlid_path_bits;
}

/* SINGLE_THREADED asks for less than there is. */
static inline int check_extended_cq(const struct ibv_cq_init_attr_ex *attr)
{
	if (attr->wc_flags & ~(uint64_t)COMPLETION_FIELDS)
		return EOPNOTSUPP;
	if (attr->comp_mask & ~IBV_CQ_INIT_ATTR_MASK_FLAGS)
		return EOPNOTSUPP;
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS &&
	    attr->flags & ~IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
		return EOPNOTSUPP;
	return 0;
}

#endif
