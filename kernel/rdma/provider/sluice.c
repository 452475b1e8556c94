// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The provider of sluice_rdma's devices for the distribution's libibverbs. Operations are system calls
 * by the common commands of uverbs, but for posts and polls where the kernel maps queues (queues.h).
 *
 *   cc -shared -fPIC -DPRIVATE_ABI=34 -I../../include -o libsluice-rdmav34.so sluice.c -libverbs
 *
 * libibverbs loads it where a file /etc/libibverbs.d/NAME.driver says "driver /FOLDER/libsluice".
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <uapi/sluice_rdma.h>

#include "extended.h"
#include "library.h"
#include "private.h"
#include "queues.h"

static int query_device(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			struct ibv_device_attr_ex *attr, size_t bytes)
{
	struct ib_uverbs_ex_query_device_resp answer;
	size_t answer_bytes = sizeof(answer);

	return ibv_cmd_query_device_any(context, input, attr, bytes, &answer, &answer_bytes);
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	COMMAND(query_port) command;

	return ibv_cmd_query_port(context, port, attr, &command, sizeof(command));
}

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct ib_uverbs_alloc_pd_resp answer;
	COMMAND(alloc_pd) command;
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	if (pd && ibv_cmd_alloc_pd(context, pd, &command, sizeof(command), &answer,
				   sizeof(answer))) {
		free(pd);
		return NULL;
	}
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	int err = ibv_cmd_dealloc_pd(pd);

	if (!err)
		free(pd);
	return err;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	struct ib_uverbs_reg_mr_resp answer;
	struct verbs_mr *mr = calloc(1, sizeof(*mr));
	COMMAND(reg_mr) command;
	int err;

	if (!mr)
		return NULL;
	err = ibv_cmd_reg_mr(pd, addr, length, iova, access, mr, &command, sizeof(command), &answer,
			     sizeof(answer));
	if (err) {
		free(mr);
		errno = err;
		return NULL;
	}
	return &mr->ibv_mr;
}

static int dereg_mr(struct verbs_mr *mr)
{
	int err = ibv_cmd_dereg_mr(mr);

	if (!err)
		free(mr);
	return err;
}

/* Bound by requests of mapped queues, as no call binds any. */
static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ib_uverbs_alloc_mw_resp answer;
	COMMAND(alloc_mw) command;
	struct ibv_mw *mw;
	int err;

	if (!queues_wanted()) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	mw = calloc(1, sizeof(*mw));
	if (!mw)
		return NULL;
	err = ibv_cmd_alloc_mw(pd, type, mw, &command, sizeof(command), &answer, sizeof(answer));
	if (err) {
		free(mw);
		errno = err;
		return NULL;
	}
	return mw;
}

static int dealloc_mw(struct ibv_mw *mw)
{
	int err = ibv_cmd_dealloc_mw(mw);

	if (!err)
		free(mw);
	return err;
}

/* Of the first kind: each binding has the next key. */
static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = {
		.wr_id = bind->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = bind->send_flags,
		.bind_mw = { .mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = bind->bind_info },
	};
	struct ibv_send_wr *bad;
	int err = fast_post_send(qp, &wr, &bad);

	if (!err)
		mw->rkey = wr.bind_mw.rkey;
	return err;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe,
				struct ibv_comp_channel *channel, int vector)
{
	struct {
		struct ib_uverbs_create_cq_resp common;
		struct sluice_rdma_cq_answer own;
	} answer = { 0 };
	struct {
		COMMAND(create_cq) common;
		struct sluice_rdma_ask own;
	} command = { .own.queues = queues_wanted() };
	struct fast_cq *cq = calloc(1, sizeof(*cq));
	int err;

	if (!cq)
		return NULL;
	err = ibv_cmd_create_cq(context, cqe, channel, vector, (struct ibv_cq *)cq, (void *)&command,
				sizeof(command), &answer.common, sizeof(answer));
	if (!err && !map_cq(cq, &answer.own)) {
		err = errno;
		ibv_cmd_destroy_cq((struct ibv_cq *)cq);
	}
	if (err) {
		free(cq);
		errno = err;
		return NULL;
	}
	return (struct ibv_cq *)cq;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	int err = check_extended_cq(attr);
	struct ibv_cq *cq;

	if (err) {
		errno = err;
		return NULL;
	}
	cq = create_cq(context, attr->cqe, attr->channel, attr->comp_vector);
	if (!cq)
		return NULL;
	extend_cq(to_fast_cq(cq));
	return &to_fast_cq(cq)->cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	int err = ibv_cmd_destroy_cq(cq);

	if (!err) {
		unmap_cq(to_fast_cq(cq));
		free(cq);
	}
	return err;
}

static struct ibv_qp *new_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, size_t bytes)
{
	struct {
		struct ib_uverbs_create_qp_resp common;
		struct sluice_rdma_qp_answer own;
	} answer = { 0 };
	struct {
		COMMAND(create_qp) common;
		struct sluice_rdma_ask own;
	} command = { .own.queues = queues_wanted() };
	struct fast_qp *qp = calloc(1, bytes);
	int err;

	if (!qp)
		return NULL;
	err = ibv_cmd_create_qp(pd, &qp->qp.qp, attr, (void *)&command, sizeof(command),
				&answer.common, sizeof(answer));
	if (!err && !map_qp(qp, &answer.own, attr)) {
		err = errno;
		ibv_cmd_destroy_qp(&qp->qp.qp);
	}
	if (err) {
		free(qp);
		errno = err;
		return NULL;
	}
	return &qp->qp.qp;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return new_qp(pd, attr, sizeof(struct fast_qp));
}

static int destroy_qp(struct ibv_qp *qp);

/* Only where queues are mapped: of requests that are posted by a call a part may be refused, and there all count or none. */
static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	int err = check_extended_qp(attr);
	struct ibv_qp *qp;

	(void)context;
	if (err) {
		errno = err;
		return NULL;
	}
	/* It begins with the fields of the other one. */
	qp = new_qp(attr->pd, (struct ibv_qp_init_attr *)attr, sizeof(struct extended_qp));
	if (!qp || !(attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
		return qp;
	err = !to_fast_qp(qp)->words ? EOPNOTSUPP : extend_qp((struct extended_qp *)qp) ? 0 : ENOMEM;
	if (err) {
		destroy_qp(qp);
		errno = err;
		return NULL;
	}
	return qp;
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		    struct ibv_qp_init_attr *init)
{
	COMMAND(query_qp) command;

	return ibv_cmd_query_qp(qp, attr, mask, init, &command, sizeof(command));
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	COMMAND(modify_qp) command = { 0 };
	int err = ibv_cmd_modify_qp(qp, attr, mask, &command, sizeof(command));

	if (!err && (mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_RESET)
		forget_all_completions(qp->send_cq, qp->recv_cq, qp->qp_num);
	return err;
}

static int destroy_qp(struct ibv_qp *qp)
{
	struct ibv_cq *send = qp->send_cq, *recv = qp->recv_cq;
	uint32_t number = qp->qp_num;
	int err = ibv_cmd_destroy_qp(qp);

	if (!err) {
		forget_all_completions(send, recv, number);
		if (is_extended(&to_fast_qp(qp)->qp))
			forget_extended((struct extended_qp *)qp);
		unmap_qp(to_fast_qp(qp));
		free(qp);
	}
	return err;
}

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ib_uverbs_create_srq_resp answer;
	struct verbs_srq *srq = calloc(1, sizeof(*srq));
	COMMAND(create_srq) command;
	int err;

	if (!srq)
		return NULL;
	err = ibv_cmd_create_srq(pd, &srq->srq, attr, &command, sizeof(command), &answer,
				 sizeof(answer));
	if (err) {
		free(srq);
		errno = err;
		return NULL;
	}
	return &srq->srq;
}

static int modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	COMMAND(modify_srq) command;

	return ibv_cmd_modify_srq(srq, attr, mask, &command, sizeof(command));
}

static int query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	COMMAND(query_srq) command;

	return ibv_cmd_query_srq(srq, attr, &command, sizeof(command));
}

static int destroy_srq(struct ibv_srq *srq)
{
	int err = ibv_cmd_destroy_srq(srq);

	if (!err)
		free(srq);
	return err;
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ib_uverbs_create_ah_resp answer;
	struct ibv_ah *ah = calloc(1, sizeof(*ah));
	int err;

	if (!ah)
		return NULL;
	err = ibv_cmd_create_ah(pd, ah, attr, &answer, sizeof(answer));
	if (err) {
		free(ah);
		errno = err;
		return NULL;
	}
	return ah;
}

static int destroy_ah(struct ibv_ah *ah)
{
	int err = ibv_cmd_destroy_ah(ah);

	if (!err)
		free(ah);
	return err;
}

/* The size in front of a context is that of the whole of it, whichever libibverbs this is. */
static void free_context(struct ibv_context *context)
{
	struct verbs_context *whole;
	size_t bytes;

	memcpy(&bytes, (char *)context - sizeof(bytes), sizeof(bytes));
	whole = (void *)((char *)(context + 1) - bytes);
	verbs_uninit_context(whole);
	free(whole);
}

#define OPERATION(slot, function) [SLOT_##slot] = (void (*)(void))(function)

static const struct verbs_context_ops operations = {
	.slots = {
		OPERATION(ALLOC_MW, alloc_mw),
		OPERATION(ALLOC_PD, alloc_pd),
		OPERATION(ATTACH_MCAST, ibv_cmd_attach_mcast),
		OPERATION(BIND_MW, bind_mw),
		OPERATION(CREATE_AH, create_ah),
		OPERATION(CREATE_CQ, create_cq),
		OPERATION(CREATE_CQ_EX, create_cq_ex),
		OPERATION(CREATE_QP, create_qp),
		OPERATION(CREATE_QP_EX, create_qp_ex),
		OPERATION(CREATE_SRQ, create_srq),
		OPERATION(DEALLOC_MW, dealloc_mw),
		OPERATION(DEALLOC_PD, dealloc_pd),
		OPERATION(DEREG_MR, dereg_mr),
		OPERATION(DESTROY_AH, destroy_ah),
		OPERATION(DESTROY_CQ, destroy_cq),
		OPERATION(DESTROY_QP, destroy_qp),
		OPERATION(DESTROY_SRQ, destroy_srq),
		OPERATION(DETACH_MCAST, ibv_cmd_detach_mcast),
		OPERATION(FREE_CONTEXT, free_context),
		OPERATION(MODIFY_QP, modify_qp),
		OPERATION(MODIFY_SRQ, modify_srq),
		OPERATION(POLL_CQ, fast_poll_cq),
		OPERATION(POST_RECV, fast_post_recv),
		OPERATION(POST_SEND, fast_post_send),
		OPERATION(POST_SRQ_RECV, ibv_cmd_post_srq_recv),
		OPERATION(QUERY_DEVICE_EX, query_device),
		OPERATION(QUERY_PORT, query_port),
		OPERATION(QUERY_QP, query_qp),
		OPERATION(QUERY_SRQ, query_srq),
		OPERATION(REG_MR, reg_mr),
		OPERATION(REQ_NOTIFY_CQ, ibv_cmd_req_notify_cq),
	},
};

/* False: this libibverbs is none that is known, and of what it has been told it calls nothing. */
static bool set_operations(struct verbs_context *context)
{
	const struct library *library = library_of(context);
	struct verbs_context_ops table;

	if (!library)
		return false;
	place_operations(library, &operations, &table);
	verbs_set_ops(context, &table);
	return are_placed(context_of(library, context), &operations);
}

static int ask_for_context(struct verbs_context *context)
{
	struct ib_uverbs_get_context_resp answer;
	COMMAND(get_context) command;

#if PRIVATE_ABI == 34
	return ibv_cmd_get_context(context, &command, sizeof(command), &answer, sizeof(answer));
#else
	return ibv_cmd_get_context(context, &command, sizeof(command), NULL, &answer, sizeof(answer));
#endif
}

static struct verbs_context *alloc_context(struct ibv_device *device, int cmd_fd, void *private_data)
{
	struct verbs_context *context;
	int err = EOPNOTSUPP;

	(void)private_data;
	/* The context begins with what is libibverbs'; RDMA_DRIVER_UNKNOWN is 0. */
	context = _verbs_init_and_alloc_context(device, cmd_fd, CONTEXT_ROOM, NULL, 0);
	if (!context)
		return NULL;
	if (!set_operations(context))
		refuse_library();
	else
		err = ask_for_context(context);
	if (!err)
		return context;
	verbs_uninit_context(context);
	free(context);
	errno = err;
	return NULL;
}

/* The module's devices have a file that no other has, whatever they are called. */
static bool match_device(struct verbs_sysfs_dev *found)
{
	char path[IBV_SYSFS_PATH_MAX + 32];

	snprintf(path, sizeof(path), "%s/%s", found->ibdev_path, SLUICE_RDMA_MARK);
	return access(path, F_OK) == 0;
}

static struct verbs_device *alloc_device(struct verbs_sysfs_dev *found)
{
	(void)found;
	return calloc(1, sizeof(struct verbs_device));
}

static void uninit_device(struct verbs_device *device)
{
	free(device);
}

/* Looked through for each device of a driver that libibverbs knows: it has to be there, with nothing in it. */
static const struct verbs_match_ent no_names[1];

static const struct verbs_device_ops provider = {
	.name = "sluice",
	.match_min_abi_version = SLUICE_RDMA_ABI,
	.match_max_abi_version = SLUICE_RDMA_ABI,
	.match_table = no_names,
	.match_device = match_device,
	.alloc_context = alloc_context,
	.alloc_device = alloc_device,
	.uninit_device = uninit_device,
};

static __attribute__((constructor)) void begin(void)
{
	verbs_register_driver(&provider);
}
