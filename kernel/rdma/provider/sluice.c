// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The provider of sluice_rdma's devices for the distribution's libibverbs. Each operation is a system
 * call by the common commands of uverbs.
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

#include "private.h"

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

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe,
				struct ibv_comp_channel *channel, int vector)
{
	struct ib_uverbs_create_cq_resp answer;
	/* With the fields that libibverbs uses of any. */
	struct ibv_cq_ex *cq = calloc(1, sizeof(*cq));
	COMMAND(create_cq) command;
	int err;

	if (!cq)
		return NULL;
	err = ibv_cmd_create_cq(context, cqe, channel, vector, (struct ibv_cq *)cq, &command,
				sizeof(command), &answer, sizeof(answer));
	if (err) {
		free(cq);
		errno = err;
		return NULL;
	}
	return (struct ibv_cq *)cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	int err = ibv_cmd_destroy_cq(cq);

	if (!err)
		free(cq);
	return err;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ib_uverbs_create_qp_resp answer;
	struct verbs_qp *qp = calloc(1, sizeof(*qp));
	COMMAND(create_qp) command;
	int err;

	if (!qp)
		return NULL;
	err = ibv_cmd_create_qp(pd, &qp->qp, attr, &command, sizeof(command), &answer,
				sizeof(answer));
	if (err) {
		free(qp);
		errno = err;
		return NULL;
	}
	return &qp->qp;
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

	return ibv_cmd_modify_qp(qp, attr, mask, &command, sizeof(command));
}

static int destroy_qp(struct ibv_qp *qp)
{
	int err = ibv_cmd_destroy_qp(qp);

	if (!err)
		free(qp);
	return err;
}

static void free_context(struct ibv_context *context)
{
	struct verbs_context *whole =
		(void *)((char *)context - offsetof(struct verbs_context, context));

	verbs_uninit_context(whole);
	free(whole);
}

#define OPERATION(slot, function) [SLOT_##slot] = (void (*)(void))(function)

static const struct verbs_context_ops operations = {
	.slots = {
		OPERATION(ALLOC_PD, alloc_pd),
		OPERATION(CREATE_CQ, create_cq),
		OPERATION(CREATE_QP, create_qp),
		OPERATION(DEALLOC_PD, dealloc_pd),
		OPERATION(DEREG_MR, dereg_mr),
		OPERATION(DESTROY_CQ, destroy_cq),
		OPERATION(DESTROY_QP, destroy_qp),
		OPERATION(FREE_CONTEXT, free_context),
		OPERATION(MODIFY_QP, modify_qp),
		OPERATION(POLL_CQ, ibv_cmd_poll_cq),
		OPERATION(POST_RECV, ibv_cmd_post_recv),
		OPERATION(POST_SEND, ibv_cmd_post_send),
		OPERATION(QUERY_DEVICE_EX, query_device),
		OPERATION(QUERY_PORT, query_port),
		OPERATION(QUERY_QP, query_qp),
		OPERATION(REG_MR, reg_mr),
		OPERATION(REQ_NOTIFY_CQ, ibv_cmd_req_notify_cq),
	},
};

static struct verbs_context *alloc_context(struct ibv_device *device, int cmd_fd, void *private_data)
{
	struct ib_uverbs_get_context_resp answer;
	struct verbs_context *context;
	COMMAND(get_context) command;

	(void)private_data;
	/* The context begins with what is libibverbs'; RDMA_DRIVER_UNKNOWN is 0. */
	context = _verbs_init_and_alloc_context(device, cmd_fd, sizeof(*context), NULL, 0);
	if (!context)
		return NULL;
	if (ibv_cmd_get_context(context, &command, sizeof(command), &answer, sizeof(answer))) {
		verbs_uninit_context(context);
		free(context);
		return NULL;
	}
	verbs_set_ops(context, &operations);
	return context;
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

static const struct verbs_device_ops provider = {
	.name = "sluice",
	.match_min_abi_version = SLUICE_RDMA_ABI,
	.match_max_abi_version = SLUICE_RDMA_ABI,
	.match_device = match_device,
	.alloc_context = alloc_context,
	.alloc_device = alloc_device,
	.uninit_device = uninit_device,
};

static __attribute__((constructor)) void begin(void)
{
	verbs_register_driver(&provider);
}
