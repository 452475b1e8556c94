/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What a provider needs of libibverbs' private interface, whose header no distribution ships: layouts
 * and functions as they are behind the symbol versions IBVERBS_PRIVATE_34 (rdma-core 44 to 56), 57 (57 and 58),
 * 59 (59 to 63), 64 and 65, and nothing that is not used here. Decision 0047 says how this was checked.
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

/* Which devices are a provider's. The last one of a table says nothing, and is all zeros. */
struct verbs_match_ent {
	void *driver_data;
	uint64_t what;
	uint16_t vendor;
	uint16_t device;
	uint8_t kind;
};

struct verbs_device_ops {
	const char *name;
	uint32_t match_min_abi_version;
	uint32_t match_max_abi_version;
	const struct verbs_match_ent *match_table;
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
_Static_assert(sizeof(struct ibv_context) == 328, "ibv_context is another one");

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
	/* From 45 on struct ibv_qp_ex has a function more, and the fields behind it lie so much later. */
	void *later_xrcd;
};

#define VERBS_QP_EX 2

/*
 * The queue pair is an extended one. Said where libibverbs 44 looks for it, and where those from 45 on do, whichever this is
 * compiled for: where it is the other the one is the function of an operation that is never asked for (wr_flush), and the
 * other a word that does not count.
 */
static inline void say_extended(struct verbs_qp *qp)
{
	uint32_t *later = (uint32_t *)((char *)&qp->comp_mask + sizeof(void (*)(void)));

	qp->comp_mask = VERBS_QP_EX;
	*later = VERBS_QP_EX;
}

static inline bool is_extended(const struct verbs_qp *qp)
{
	return qp->comp_mask & VERBS_QP_EX;
}

struct verbs_srq {
	struct ibv_srq srq;
	int srq_type;
	void *xrcd;
	struct ibv_cq *cq;
	uint32_t srq_num;
};

/* A table of operations is an array of functions, ordered by name: their places with 34 and 57. */
enum slot {
	SLOT_ALLOC_MW = 2,
	SLOT_ALLOC_PD = 5,
	SLOT_ATTACH_MCAST = 9,
	SLOT_BIND_MW = 10,
	SLOT_CREATE_AH = 13,
	SLOT_CREATE_CQ = 15,
	SLOT_CREATE_CQ_EX = 16,
	SLOT_CREATE_QP = 19,
	SLOT_CREATE_QP_EX = 20,
	SLOT_CREATE_SRQ = 22,
	SLOT_DEALLOC_MW = 25,
	SLOT_DEALLOC_PD = 26,
	SLOT_DEREG_MR = 28,
	SLOT_DESTROY_AH = 29,
	SLOT_DESTROY_CQ = 31,
	SLOT_DESTROY_QP = 34,
	SLOT_DESTROY_SRQ = 36,
	SLOT_DETACH_MCAST = 38,
	SLOT_FREE_CONTEXT = 39,
	SLOT_MODIFY_QP = 47,
	SLOT_MODIFY_SRQ = 49,
	SLOT_POLL_CQ = 53,
	SLOT_POST_RECV = 54,
	SLOT_POST_SEND = 55,
	SLOT_POST_SRQ_RECV = 57,
	SLOT_QUERY_DEVICE_EX = 58,
	SLOT_QUERY_PORT = 60,
	SLOT_QUERY_QP = 61,
	SLOT_QUERY_SRQ = 64,
	SLOT_REG_MR = 68,
	SLOT_REQ_NOTIFY_CQ = 69,
	SLOTS = 76,
};

/* The most operations that any library has more (library.h). */
#define SLOTS_MORE_MAX 17

/* Larger than the table of a library that has fewer, which looks at no more than it knows. */
struct verbs_context_ops {
	void (*slots[SLOTS + SLOTS_MORE_MAX])(void);
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

#if PRIVATE_ABI == 34
int ibv_cmd_get_context(struct verbs_context *context, void *command, size_t bytes,
			struct ib_uverbs_get_context_resp *answer, size_t answer_bytes);
#else
int ibv_cmd_get_context(struct verbs_context *context, void *command, size_t bytes, void *descriptors,
			struct ib_uverbs_get_context_resp *answer, size_t answer_bytes);
#endif
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
int ibv_cmd_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type, struct ibv_mw *mw, void *command,
		     size_t bytes, struct ib_uverbs_alloc_mw_resp *answer, size_t answer_bytes);
int ibv_cmd_dealloc_mw(struct ibv_mw *mw);
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
int ibv_cmd_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int ibv_cmd_create_srq(struct ibv_pd *pd, struct ibv_srq *srq, struct ibv_srq_init_attr *attr,
		       void *command, size_t bytes, struct ib_uverbs_create_srq_resp *answer,
		       size_t answer_bytes);
int ibv_cmd_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask, void *command,
		       size_t bytes);
int ibv_cmd_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, void *command, size_t bytes);
int ibv_cmd_destroy_srq(struct ibv_srq *srq);
int ibv_cmd_create_ah(struct ibv_pd *pd, struct ibv_ah *ah, struct ibv_ah_attr *attr,
		      struct ib_uverbs_create_ah_resp *answer, size_t answer_bytes);
int ibv_cmd_destroy_ah(struct ibv_ah *ah);
int ibv_cmd_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int ibv_cmd_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);

#endif
