// SPDX-License-Identifier: GPL-2.0
/* What the device is, and its operations for ib_core. */
#include <linux/module.h>
#include <linux/random.h>
#include <rdma/ib_mad.h>
#include <rdma/uverbs_ioctl.h>

#include "sr.h"

struct sr_pd {
	struct ib_pd ib;
};

static int query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	memset(attr, 0, sizeof(*attr));
	attr->sys_image_guid = ib->node_guid;
	/* Nobody's OUI, as other devices without hardware say it; programs take 0 for none. */
	attr->vendor_id = 0xffffff;
	attr->max_mr_size = U64_MAX;
	attr->page_size_cap = PAGE_SIZE;
	attr->max_qp = SR_QPS_MAX;
	attr->max_qp_wr = SR_WRS_MAX;
	attr->max_send_sge = SR_SGES_MAX;
	attr->max_recv_sge = SR_SGES_MAX;
	attr->max_sge_rd = SR_SGES_MAX;
	attr->max_cq = SR_CQS_MAX;
	attr->max_cqe = SR_CQES_MAX;
	attr->max_mr = SR_MRS_MAX;
	attr->max_mw = SR_MRS_MAX;
	attr->max_pd = SR_PDS_MAX;
	attr->max_qp_rd_atom = SR_READS_MAX;
	attr->max_qp_init_rd_atom = SR_READS_MAX;
	attr->max_res_rd_atom = SR_READS_MAX * SR_QPS_MAX;
	attr->atomic_cap = IB_ATOMIC_GLOB;
	attr->max_srq = SR_SRQS_MAX;
	attr->max_srq_wr = SR_WRS_MAX;
	attr->max_srq_sge = SR_SGES_MAX;
	attr->max_ah = SR_AHS_MAX;
	attr->max_mcast_grp = SR_QPS_MAX;
	attr->max_mcast_qp_attach = SR_QPS_MAX;
	attr->max_total_mcast_qp_attach = SR_QPS_MAX;
	attr->max_pkeys = 1;
	/* Of users in the kernel, which is addressed as it is. */
	attr->kernel_cap_flags = IBK_LOCAL_DMA_LKEY;
	attr->device_cap_flags = IB_DEVICE_RC_RNR_NAK_GEN | IB_DEVICE_MEM_MGT_EXTENSIONS |
				 IB_DEVICE_MEM_WINDOW | IB_DEVICE_MEM_WINDOW_TYPE_2B;
	attr->max_fast_reg_page_list_len = SR_FAST_PAGES_MAX;
	return 0;
}

static int query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	struct sr_device *device = to_device(ib);

	bool is_up, routed = port == SR_ROCE_PORT;

	mutex_lock(&device->lock);
	is_up = device->held && (!routed || sr_net_is_up(device));
	attr->lid = is_up && !routed ? device->view.me + 1 : 0;
	mutex_unlock(&device->lock);
	attr->state = is_up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_4096;
	attr->phys_state = is_up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->gid_tbl_len = routed ? SR_GIDS_MAX : 1;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = SR_MESSAGE_BYTES_MAX;
	attr->max_vl_num = 1;
	/* What a window carries depends on the memory; these are numbers for programs that divide by them. */
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_EDR;
	return 0;
}

/* Numbers of queue pairs say which host is meant, LIDs and GIDs nothing that anybody needs. */
static int query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid)
{
	if (index)
		return -EINVAL;
	gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
	gid->global.interface_id = ib->node_guid;
	return 0;
}

static int query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = 0xffff;
	return 0;
}

/* ib_cm says so that it is there. */
static int modify_port(struct ib_device *ib, u32 port, int mask, struct ib_port_modify *modify)
{
	return mask || (modify->set_port_cap_mask & ~IB_PORT_CM_SUP) ? -EOPNOTSUPP : 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *ib, u32 port)
{
	return port == SR_ROCE_PORT ? IB_LINK_LAYER_ETHERNET : IB_LINK_LAYER_INFINIBAND;
}

/*
 * A connection manager is the RoCE port's; see sr_gsi.c for the other one's. GIDs of that port are of both kinds, with
 * and without UDP: nothing leaves by either header, and SMC-R of the first version knows those without alone.
 */
static int get_port_immutable(struct ib_device *ib, u32 port, struct ib_port_immutable *immutable)
{
	immutable->pkey_tbl_len = 1;
	immutable->gid_tbl_len = port == SR_ROCE_PORT ? SR_GIDS_MAX : 1;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	immutable->core_cap_flags = port == SR_ROCE_PORT ?
					    RDMA_CORE_PORT_IBA_ROCE |
						    RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP :
					    RDMA_CORE_CAP_PROT_IB | RDMA_CORE_CAP_IB_MAD |
						    RDMA_CORE_CAP_IB_CM;
	return 0;
}

/*
 * ib_core offers no device to users in the kernel that has none, and the connection manager is one. Nobody
 * asks for it: IBK_LOCAL_DMA_LKEY.
 */
static struct ib_mr *get_dma_mr(struct ib_pd *pd, int access)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static int alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	return 0;
}

static void dealloc_ucontext(struct ib_ucontext *context)
{
}

/* With this it may go while programs have it open: what of it they have mapped is memory that nobody looks at then. */
static void disassociate_ucontext(struct ib_ucontext *context)
{
}

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

#ifdef SR_HAS_CQ_ATTRS
static int create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
		     struct uverbs_attr_bundle *attrs)
{
	return sr_cq_create(cq, attr, attrs ? &attrs->driver_udata : NULL);
}
#else
static int create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr, struct ib_udata *udata)
{
	return sr_cq_create(cq, attr, udata);
}
#endif

#ifdef SR_HAS_DMAH
static struct ib_mr *reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access,
				 struct ib_dmah *dmah, struct ib_udata *udata)
{
	if (dmah)
		return ERR_PTR(-EOPNOTSUPP);
	return sr_mr_register(pd, start, length, iova, access);
}
#else
static struct ib_mr *reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access,
				 struct ib_udata *udata)
{
	return sr_mr_register(pd, start, length, iova, access);
}
#endif

static struct ib_mr *alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 pages)
{
	return sr_mr_allocate(pd, type, pages);
}

/* For the provider, which knows the device by it. */
static ssize_t sluice_rdma_show(struct device *device, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%d\n", SLUICE_RDMA_ABI);
}
static DEVICE_ATTR_RO(sluice_rdma);

static struct attribute *attributes[] = {
	&dev_attr_sluice_rdma.attr,
	NULL,
};

static const struct attribute_group group = {
	.attrs = attributes,
};

static const struct ib_device_ops ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = SLUICE_RDMA_ABI,
	.uverbs_no_driver_id_binding = 1,
	.device_group = &group,

	.alloc_mr = alloc_mr,
	.alloc_mw = sr_mw_allocate,
	.alloc_pd = alloc_pd,
	.alloc_ucontext = alloc_ucontext,
	.attach_mcast = sr_datagram_attach,
	.create_ah = sr_ah_create,
	.create_user_ah = sr_ah_create,
	.create_cq = create_cq,
#ifdef SR_HAS_USER_CQ
	.create_user_cq = create_cq,
#endif
	.create_qp = sr_qp_create,
	.create_srq = sr_srq_create,
	.dealloc_mw = sr_mw_free,
	.dealloc_pd = dealloc_pd,
	.dealloc_ucontext = dealloc_ucontext,
	.dereg_mr = sr_mr_deregister,
	.destroy_ah = sr_ah_destroy,
	.destroy_cq = sr_cq_destroy,
	.destroy_qp = sr_qp_destroy,
	.destroy_srq = sr_srq_destroy,
	.detach_mcast = sr_datagram_detach,
	.disassociate_ucontext = disassociate_ucontext,
	.get_dma_mr = get_dma_mr,
	.get_link_layer = get_link_layer,
	.get_port_immutable = get_port_immutable,
	.map_mr_sg = sr_mr_map,
	.mmap = sr_shared_mmap,
	.mmap_free = sr_shared_free,
	.modify_port = modify_port,
	.modify_qp = sr_qp_modify,
	.modify_srq = sr_srq_modify,
	.poll_cq = sr_cq_poll,
	.post_recv = sr_post_recv,
	.post_send = sr_post_send,
	.post_srq_recv = sr_srq_post_recv,
	.query_ah = sr_ah_query,
	.query_device = query_device,
	.query_gid = query_gid,
	.query_pkey = query_pkey,
	.query_port = query_port,
	.query_qp = sr_qp_query,
	.query_srq = sr_srq_query,
	.reg_user_mr = reg_user_mr,
	.req_notify_cq = sr_cq_arm,

	INIT_RDMA_OBJ_SIZE(ib_ah, sr_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, sr_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_mw, sr_mw, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, sr_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, sr_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_srq, sr_srq, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, sr_ucontext, ib),
};

void sr_verbs_set(struct sr_device *device)
{
	struct ib_device *ib = &device->ib;

	ib->node_type = RDMA_NODE_IB_CA;
	ib->phys_port_cnt = SR_PORTS;
	ib->num_comp_vectors = 1;
	ib->local_dma_lkey = SR_LOCAL_DMA_KEY;
	ib->dev.parent = sluice_window_device(device->window);
	ib->node_guid = cpu_to_be64(get_random_u64());
	strscpy(ib->node_desc, "sluice_rdma", sizeof(ib->node_desc));
	ib->uverbs_cmd_mask |= BIT_ULL(IB_USER_VERBS_CMD_POLL_CQ) |
			       BIT_ULL(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ) |
			       BIT_ULL(IB_USER_VERBS_CMD_POST_SEND) |
			       BIT_ULL(IB_USER_VERBS_CMD_POST_RECV) |
			       BIT_ULL(IB_USER_VERBS_CMD_POST_SRQ_RECV);
	ib_set_device_ops(ib, &ops);
}
