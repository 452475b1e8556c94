/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What a provider needs of libibverbs' private interface, whose header no distribution ships: layouts
 * and functions as they are behind the symbol versions IBVERBS_PRIVATE_34 (rdma-core up to 56) and 57,
 * and nothing that is not used here. decision 0047 says how this was checked.
 */
#ifndef PRIVATE_H
#define PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>

#ifndef PRIVATE_ABI
#define PRIVATE_ABI 34
#endif
#if PRIVATE_ABI != 34 && PRIVATE_ABI != 57
#error "the places of operations are known for 34 and 57"
#endif

struct list_node {
	struct list_node *next, *prev;
};

/* A device that was found in sysfs. */
struct verbs_sysfs_dev {
	struct list_node entry;
	void *provider_data;
	const void *match;
	unsigned int flags;
	char sysfs_name[IBV_SYSFS_NAME_MAX];
	dev_t sysfs_cdev;
	char ibdev_name[IBV_SYSFS_NAME_MAX];
	char ibdev_path[IBV_SYSFS_PATH_MAX];
	/* More, which is not used. */
};

struct verbs_device;

struct verbs_device_ops {
	const char *name;
	uint32_t match_min_abi_version;
	uint32_t match_max_abi_version;
	const void *match_table;
	const void *static_providers;
	bool (*match_device)(struct verbs_sysfs_dev *found);
	struct verbs_context *(*alloc_context)(struct ibv_device *device, int cmd_fd,
					       void *private_data);
	struct verbs_context *(*import_context)(struct ibv_device *device, int cmd_fd);
	struct verbs_device *(*alloc_device)(struct verbs_sysfs_dev *found);
	void (*uninit_device)(struct verbs_device *device);
};

struct verbs_device {
	struct ibv_device device;
	const struct verbs_device_ops *ops;
	int refcount;
	struct list_node entry;
	struct verbs_sysfs_dev *sysfs;
	uint64_t core_support;
};

_Static_assert(offsetof(struct verbs_device, ops) == 664, "ibv_device is another one");
_Static_assert(sizeof(struct verbs_device) == 712, "verbs_device is another one");
_Static_assert(sizeof(struct verbs_context) == 648, "verbs_context is another one");

struct verbs_mr {
	struct ibv_mr ibv_mr;
	int mr_type;
	int access;
};

/* With what libibverbs keeps behind it. */
struct verbs_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex qp_ex;
	};
	uint32_t comp_mask;
	void *xrcd;
};

/* A table of operations is an array of functions, ordered by name. */
enum slot {
	SLOT_ALLOC_PD = 5,
	SLOT_CREATE_CQ = 15,
	SLOT_CREATE_QP = 19,
	SLOT_DEALLOC_PD = 26,
	SLOT_DEREG_MR = 28,
	SLOT_DESTROY_CQ = 31,
	SLOT_DESTROY_QP = 34,
	SLOT_FREE_CONTEXT = 39,
	SLOT_MODIFY_QP = 47,
	SLOT_POLL_CQ = 53,
	SLOT_POST_RECV = 54,
	SLOT_POST_SEND = 55,
	SLOT_QUERY_DEVICE_EX = 58,
	SLOT_QUERY_PORT = 60,
	SLOT_QUERY_QP = 61,
	SLOT_REG_MR = 68,
	SLOT_REQ_NOTIFY_CQ = 69,
	SLOTS = 76,
};

struct verbs_context_ops {
	void (*slots[SLOTS])(void);
};

/* A command of the kernel's, with the header that libibverbs fills in. */
#define COMMAND(name)                                                                           \
	struct {                                                                                \
		struct ib_uverbs_cmd_hdr header;                                                \
		struct ib_uverbs_##name command;                                                \
	}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define verbs_register_driver JOIN(verbs_register_driver_, PRIVATE_ABI)

void verbs_register_driver(const struct verbs_device_ops *ops);
void *_verbs_init_and_alloc_context(struct ibv_device *device, int cmd_fd, size_t bytes,
				    struct verbs_context *context_at, uint32_t driver_id);
void verbs_uninit_context(struct verbs_context *context);
void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops);

int ibv_cmd_get_context(struct verbs_context *context, void *command, size_t bytes,
			struct ib_uverbs_get_context_resp *answer, size_t answer_bytes);
int ibv_cmd_query_device_any(struct ibv_context *context,
			     const struct ibv_query_device_ex_input *input,
			     struct ibv_device_attr_ex *attr, size_t attr_bytes,
			     struct ib_uverbs_ex_query_device_resp *answer, size_t *answer_bytes);
int ibv_cmd_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
		       void *command, size_t bytes);
int ibv_cmd_alloc_pd(struct ibv_context *context, struct ibv_pd *pd, void *command, size_t bytes,
		     struct ib_uverbs_alloc_pd_resp *answer, size_t answer_bytes);
int ibv_cmd_dealloc_pd(struct ibv_pd *pd);
int ibv_cmd_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access,
		   struct verbs_mr *mr, void *command, size_t bytes,
		   struct ib_uverbs_reg_mr_resp *answer, size_t answer_bytes);
int ibv_cmd_dereg_mr(struct verbs_mr *mr);
int ibv_cmd_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel,
		      int vector, struct ibv_cq *cq, void *command, size_t bytes,
		      struct ib_uverbs_create_cq_resp *answer, size_t answer_bytes);
int ibv_cmd_destroy_cq(struct ibv_cq *cq);
int ibv_cmd_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *completions);
int ibv_cmd_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int ibv_cmd_create_qp(struct ibv_pd *pd, struct ibv_qp *qp, struct ibv_qp_init_attr *attr,
		      void *command, size_t bytes, struct ib_uverbs_create_qp_resp *answer,
		      size_t answer_bytes);
int ibv_cmd_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		     struct ibv_qp_init_attr *init, void *command, size_t bytes);
int ibv_cmd_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, void *command,
		      size_t bytes);
int ibv_cmd_destroy_qp(struct ibv_qp *qp);
int ibv_cmd_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int ibv_cmd_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
