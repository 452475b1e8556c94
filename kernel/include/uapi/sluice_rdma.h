/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What sluice_rdma and its provider for rdma-core (kernel/rdma/provider) have to agree on. Everything
 * goes by the common commands of uverbs, with nothing of the driver's in them.
 */
#ifndef SLUICE_RDMA_UAPI_H
#define SLUICE_RDMA_UAPI_H

/* ib_device.uverbs_abi_ver */
#define SLUICE_RDMA_ABI		1

/* A file in the folder of each of its devices in sysfs, which says the same number. */
#define SLUICE_RDMA_MARK	"sluice_rdma"

#endif
