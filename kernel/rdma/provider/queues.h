/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Queues that lie in this process: posting and polling without a call, as long as the kernel says that
 * somebody looks (sluice_rdma.h). What the kernel would refuse is refused here; it checks all of it
 * again.
 */
#ifndef QUEUES_H
#define QUEUES_H

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <uapi/sluice_rdma.h>

#include "private.h"

#define MESSAGE_BYTES_MAX (1ULL << 31)
/* Of polls that find nothing in a row, the first and each of so many calls the kernel. */
#define CALL_EACH 16

struct fast_cq {
	/* With the fields that libibverbs uses of any. */
	struct ibv_cq_ex cq;
	/* NULL: each poll is a call. */
	struct sluice_rdma_cq_words *words;
	size_t bytes;
	const struct sluice_rdma_completion *places;
	uint32_t mask;
	uint32_t head;
	/* Polls that found nothing since one did, or since something was posted. */
	uint32_t empty;
	pthread_spinlock_t lock;
	/* The completion whose fields are read, by who has started to (extended.h). */
	struct ibv_wc read;
	pthread_mutex_t reading;
};

struct fast_qp {
	struct verbs_qp qp;
	/* NULL: each post is a call. */
	struct sluice_rdma_qp_words *words;
	size_t bytes;
	uint8_t *sends;
	uint32_t send_bytes;
	uint32_t send_mask;
	uint32_t send_tail;
	uint32_t sends_max;
	uint32_t send_sges_max;
	uint32_t inline_max;
	pthread_spinlock_t send_lock;
	uint8_t *receives;
	uint32_t receive_bytes;
	uint32_t receive_mask;
	uint32_t receive_tail;
	uint32_t receives_max;
	uint32_t receive_sges_max;
	pthread_spinlock_t receive_lock;
};

static inline struct fast_cq *to_fast_cq(struct ibv_cq *cq)
{
	return (struct fast_cq *)cq;
}

static inline struct fast_qp *to_fast_qp(struct ibv_qp *qp)
{
	return (struct fast_qp *)qp;
}

/* Whether queues are to be mapped: unless SLUICE_RDMA_FAST=0 is in the environment. */
static inline uint32_t queues_wanted(void)
{
	const char *fast = getenv("SLUICE_RDMA_FAST");

	return fast && !strcmp(fast, "0") ? 0 : SLUICE_RDMA_QUEUES;
}

static inline void *map_queue(struct ibv_context *context, uint64_t offset, uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, context->cmd_fd, offset);

	return at == MAP_FAILED ? NULL : at;
}

/* Kernels that map nothing answer with zeros. False: it is to be mapped and cannot be. */
static inline int map_cq(struct fast_cq *cq, const struct sluice_rdma_cq_answer *answer)
{
	if (answer->queues != SLUICE_RDMA_QUEUES)
		return 1;
	pthread_spin_init(&cq->lock, PTHREAD_PROCESS_PRIVATE);
	cq->bytes = answer->bytes;
	cq->words = map_queue(cq->cq.context, answer->offset, answer->bytes);
	if (!cq->words)
		return 0;
	cq->places = (void *)((uint8_t *)cq->words + answer->at);
	cq->mask = answer->places - 1;
	return 1;
}

static inline int map_qp(struct fast_qp *qp, const struct sluice_rdma_qp_answer *answer,
			 const struct ibv_qp_init_attr *attr)
{
	uint8_t *at;

	if (answer->queues != SLUICE_RDMA_QUEUES)
		return 1;
	pthread_spin_init(&qp->send_lock, PTHREAD_PROCESS_PRIVATE);
	pthread_spin_init(&qp->receive_lock, PTHREAD_PROCESS_PRIVATE);
	qp->bytes = answer->bytes;
	qp->words = map_queue(qp->qp.qp.context, answer->offset, answer->bytes);
	if (!qp->words)
		return 0;
	at = (uint8_t *)qp->words;
	qp->sends = at + answer->send_at;
	qp->send_bytes = answer->send_bytes;
	qp->send_mask = answer->send_places - 1;
	qp->sends_max = attr->cap.max_send_wr;
	qp->send_sges_max = attr->cap.max_send_sge;
	qp->inline_max = attr->cap.max_inline_data;
	qp->receives = at + answer->receive_at;
	qp->receive_bytes = answer->receive_bytes;
	qp->receive_mask = answer->receive_places - 1;
	/* With shared receives there are no places. */
	qp->receives_max = answer->receive_places ? attr->cap.max_recv_wr : 0;
	qp->receive_sges_max = attr->cap.max_recv_sge;
	return 1;
}

static inline void unmap_cq(struct fast_cq *cq)
{
	if (cq->words)
		munmap(cq->words, cq->bytes);
}

static inline void unmap_qp(struct fast_qp *qp)
{
	if (qp->words)
		munmap(qp->words, qp->bytes);
}

/* What a window may be bound with; flags that give nobody anything are ignored. */
#define BIND_ACCESS                                                                             \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |             \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |                 \
	 IBV_ACCESS_OPTIONAL_RANGE)

static inline int check_bind(const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *info = &wr->bind_mw.bind_info;

	if (wr->num_sge || !wr->bind_mw.mw || (info->length && !info->mr))
		return EINVAL;
	return info->mw_access_flags & ~BIND_ACCESS ? EINVAL : 0;
}

/* EINVAL, EOPNOTSUPP: what the kernel would say of it. */
static inline int check_send(const struct fast_qp *qp, const struct ibv_send_wr *wr, uint64_t length)
{
	int is_reliable = qp->qp.qp.qp_type == IBV_QPT_RC;

	if ((uint32_t)wr->num_sge > qp->send_sges_max || length > MESSAGE_BYTES_MAX ||
	    (wr->send_flags & IBV_SEND_IP_CSUM))
		return EINVAL;
	if (wr->send_flags & IBV_SEND_INLINE &&
	    (length > qp->inline_max || wr->opcode == IBV_WR_RDMA_READ ||
	     wr->opcode == IBV_WR_BIND_MW || wr->opcode == IBV_WR_LOCAL_INV ||
	     wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD))
		return EINVAL;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		return 0;
	case IBV_WR_RDMA_READ:
	case IBV_WR_SEND_WITH_INV:
		return is_reliable ? 0 : EOPNOTSUPP;
	case IBV_WR_BIND_MW:
		return check_bind(wr);
	case IBV_WR_LOCAL_INV:
		return wr->num_sge ? EINVAL : 0;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return !is_reliable ? EOPNOTSUPP : length == sizeof(uint64_t) ? 0 : EINVAL;
	default:
		return EOPNOTSUPP;
	}
}

static inline uint64_t put_sges(struct sluice_rdma_sge *to, const struct ibv_sge *from, int count,
				uint32_t max)
{
	uint64_t length = 0;
	int i;

	for (i = 0; i < count && (uint32_t)i < max; i++) {
		to[i].addr = from[i].addr;
		to[i].length = from[i].length;
		to[i].lkey = from[i].lkey;
		length += from[i].length;
	}
	return length;
}

/* The bytes themselves, as many as there may be. How many there are. */
static inline uint64_t put_inline(uint8_t *to, const struct ibv_sge *from, int count, uint32_t max)
{
	uint64_t length = 0;
	int i;

	for (i = 0; i < count; i++) {
		if (length + from[i].length <= max)
			memcpy(to + length, (void *)(uintptr_t)from[i].addr, from[i].length);
		length += from[i].length;
	}
	return length;
}

static inline uint32_t imm_of(const struct ibv_send_wr *wr)
{
	switch (wr->opcode) {
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		return wr->invalidate_rkey;
	case IBV_WR_BIND_MW:
		return wr->bind_mw.bind_info.mr ? wr->bind_mw.bind_info.mr->lkey : 0;
	default:
		return wr->imm_data;
	}
}

/* Into the next place; the tail moves for all that were put. */
static inline int put_send(struct fast_qp *qp, const struct ibv_send_wr *wr)
{
	struct sluice_rdma_send *place =
		(void *)(qp->sends + (size_t)(qp->send_tail & qp->send_mask) * qp->send_bytes);
	int is_inline = wr->send_flags & IBV_SEND_INLINE, err;
	uint64_t length;

	if (qp->send_tail - __atomic_load_n(&qp->words->send_head, __ATOMIC_ACQUIRE) >= qp->sends_max)
		return ENOMEM;
	length = is_inline ? put_inline((uint8_t *)place->sge, wr->sg_list, wr->num_sge, qp->inline_max) :
			     put_sges(place->sge, wr->sg_list, wr->num_sge, qp->send_sges_max);
	err = check_send(qp, wr, length);
	if (err)
		return err;
	place->wr_id = wr->wr_id;
	place->opcode = wr->opcode;
	place->flags = wr->send_flags;
	place->imm = imm_of(wr);
	place->sges = is_inline ? length : (uint32_t)wr->num_sge;
	if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		place->remote_addr = wr->wr.atomic.remote_addr;
		place->rkey = wr->wr.atomic.rkey;
		place->compare_add = wr->wr.atomic.compare_add;
		place->swap = wr->wr.atomic.swap;
	} else if (wr->opcode == IBV_WR_BIND_MW) {
		place->remote_addr = wr->bind_mw.bind_info.addr;
		place->rkey = wr->bind_mw.rkey;
		place->compare_add = wr->bind_mw.bind_info.length;
		place->swap = wr->bind_mw.bind_info.mw_access_flags;
	} else {
		place->remote_addr = wr->wr.rdma.remote_addr;
		place->rkey = wr->wr.rdma.rkey;
	}
	qp->send_tail++;
	return 0;
}

/* Whether the kernel is to be called; what is read comes behind what was written. */
static inline uint32_t wants_call(const uint32_t *word)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/* @whole: all of them, or none. */
static inline int put_sends(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad, int whole)
{
	struct fast_qp *qp = to_fast_qp(base);
	struct ibv_send_wr *none, *first = wr;
	int err = 0, called = 0;
	uint32_t before;

	/* The states that the program has asked for; of others the kernel ends what is posted. */
	if (base->state < IBV_QPS_RTS) {
		*bad = wr;
		return EINVAL;
	}
	pthread_spin_lock(&qp->send_lock);
	before = qp->send_tail;
	for (; wr && !err; wr = err ? wr : wr->next)
		err = put_send(qp, wr);
	if (err)
		*bad = wr;
	if (err && whole)
		qp->send_tail = before;
	__atomic_store_n(&qp->words->send_tail, qp->send_tail, __ATOMIC_RELEASE);
	pthread_spin_unlock(&qp->send_lock);
	to_fast_cq(base->send_cq)->empty = 0;
	if (wants_call(&qp->words->send_call) != SLUICE_RDMA_LOOKS)
		called = ibv_cmd_post_send(base, NULL, &none);
	/* There is no device any more. */
	if (called && !err)
		*bad = first;
	return err ? err : called;
}

static inline int fast_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return to_fast_qp(base)->words ? put_sends(base, wr, bad, 0) : ibv_cmd_post_send(base, wr, bad);
}

/* Of a queue pair whose queues are mapped. */
static inline int post_send_whole(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return put_sends(base, wr, bad, 1);
}

static inline int put_receive(struct fast_qp *qp, const struct ibv_recv_wr *wr)
{
	struct sluice_rdma_receive *place =
		(void *)(qp->receives + (size_t)(qp->receive_tail & qp->receive_mask) * qp->receive_bytes);
	uint32_t head = __atomic_load_n(&qp->words->receive_head, __ATOMIC_ACQUIRE);

	if (qp->receive_tail - head >= qp->receives_max)
		return ENOMEM;
	if ((uint32_t)wr->num_sge > qp->receive_sges_max ||
	    put_sges(place->sge, wr->sg_list, wr->num_sge, qp->receive_sges_max) > MESSAGE_BYTES_MAX)
		return EINVAL;
	place->wr_id = wr->wr_id;
	place->sges = wr->num_sge;
	qp->receive_tail++;
	return 0;
}

static inline int fast_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fast_qp *qp = to_fast_qp(base);
	struct ibv_recv_wr *none, *first = wr;
	int err = 0, called = 0;

	if (!qp->words)
		return ibv_cmd_post_recv(base, wr, bad);
	if (base->state == IBV_QPS_RESET || !qp->receives_max) {
		*bad = wr;
		return EINVAL;
	}
	pthread_spin_lock(&qp->receive_lock);
	for (; wr && !err; wr = err ? wr : wr->next)
		err = put_receive(qp, wr);
	if (err)
		*bad = wr;
	__atomic_store_n(&qp->words->receive_tail, qp->receive_tail, __ATOMIC_RELEASE);
	pthread_spin_unlock(&qp->receive_lock);
	if (wants_call(&qp->words->receive_call) != SLUICE_RDMA_LOOKS)
		called = ibv_cmd_post_recv(base, NULL, &none);
	if (called && !err)
		*bad = first;
	return err ? err : called;
}

static inline void take_completion(const struct sluice_rdma_completion *from, struct ibv_wc *to)
{
	to->wr_id = from->wr_id;
	to->status = from->status;
	to->opcode = from->opcode;
	to->vendor_err = 0;
	to->byte_len = from->bytes;
	to->imm_data = from->imm;
	to->qp_num = from->qp_num;
	to->src_qp = from->src_qp;
	to->wc_flags = from->flags;
	to->pkey_index = from->pkey_index;
	to->slid = from->slid;
	to->sl = 0;
	to->dlid_path_bits = 0;
}

static inline int take_completions(struct fast_cq *cq, int count, struct ibv_wc *to)
{
	uint32_t there;
	int i;

	pthread_spin_lock(&cq->lock);
	there = __atomic_load_n(&cq->words->tail, __ATOMIC_ACQUIRE) - cq->head;
	for (i = 0; i < count && (uint32_t)i < there; i++)
		take_completion(&cq->places[cq->head++ & cq->mask], &to[i]);
	if (i)
		__atomic_store_n(&cq->words->head, cq->head, __ATOMIC_RELEASE);
	pthread_spin_unlock(&cq->lock);
	return i;
}

static inline int fast_poll_cq(struct ibv_cq *base, int count, struct ibv_wc *to)
{
	struct fast_cq *cq = to_fast_cq(base);
	struct ibv_wc none;
	int taken;

	if (!cq->words)
		return ibv_cmd_poll_cq(base, count, to);
	taken = take_completions(cq, count, to);
	if (taken || count <= 0) {
		cq->empty = 0;
		return taken;
	}
	/* Who has nothing to take looks in the kernel's place, unless that does nothing else. */
	if (__atomic_load_n(&cq->words->attended, __ATOMIC_RELAXED) || cq->empty++ % CALL_EACH)
		return 0;
	/* Nothing comes by this call. It fails when there is no device any more. */
	taken = ibv_cmd_poll_cq(base, 1, &none);
	return taken < 0 ? taken : take_completions(cq, count, to);
}

/* What is left of a queue pair that is gone, or was reset, goes: others' completions move up. */
static inline void forget_completions(struct ibv_cq *base, uint32_t qp_num)
{
	struct fast_cq *cq = to_fast_cq(base);
	struct sluice_rdma_completion *places = (void *)cq->places;
	uint32_t at, to, left;

	if (!cq->words)
		return;
	pthread_spin_lock(&cq->lock);
	at = __atomic_load_n(&cq->words->tail, __ATOMIC_ACQUIRE);
	left = at - cq->head;
	/* The kernel reads none of them. More than there is room for are none. */
	for (to = at; left && left <= cq->mask + 1; left--) {
		at--;
		if (places[at & cq->mask].qp_num == qp_num)
			continue;
		to--;
		if (to != at)
			places[to & cq->mask] = places[at & cq->mask];
	}
	cq->head = to;
	__atomic_store_n(&cq->words->head, cq->head, __ATOMIC_RELEASE);
	pthread_spin_unlock(&cq->lock);
}

static inline void forget_all_completions(struct ibv_cq *send, struct ibv_cq *recv, uint32_t qp_num)
{
	forget_completions(send, qp_num);
	if (recv != send)
		forget_completions(recv, qp_num);
}

#endif
