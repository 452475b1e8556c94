// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Which libibverbs the provider says it has, and where it places operations for that one: beside tables that are made
 * here from the names of all operations. Needs no libibverbs.
 */
#include <stdlib.h>

#include "../provider/library.h"

/* In order; behind the @ the version of rdma-core that has brought it. */
static const char *const names[] = {
	"advise_mr", "alloc_buf@64", "alloc_dm", "alloc_dmah@59", "alloc_mw", "alloc_null_mr",
	"alloc_parent_domain", "alloc_pd", "alloc_td", "async_event", "attach_counters_point_flow",
	"attach_mcast", "bind_mw", "close_xrcd", "cq_event", "create_ah", "create_comp_cntr@65",
	"create_counters", "create_cq", "create_cq_ex", "create_flow", "create_flow_action_esp",
	"create_qp", "create_qp_ex", "create_rwq_ind_table", "create_srq", "create_srq_ex", "create_wq",
	"dealloc_dmah@59", "dealloc_mw", "dealloc_pd", "dealloc_td", "dereg_mr", "destroy_ah",
	"destroy_comp_cntr@65", "destroy_counters", "destroy_cq", "destroy_flow", "destroy_flow_action",
	"destroy_qp", "destroy_rwq_ind_table", "destroy_srq", "destroy_wq", "detach_mcast",
	"dm_export_dmabuf_fd@62", "free_buf@64", "free_context", "free_dm", "get_srq_num", "import_dm",
	"import_mr", "import_pd", "inc_comp_cntr@65", "inc_err_comp_cntr@65", "modify_cq",
	"modify_flow_action_esp", "modify_qp", "modify_qp_rate_limit", "modify_srq", "modify_wq",
	"open_qp", "open_xrcd", "poll_cq", "post_recv", "post_send", "post_srq_ops", "post_srq_recv",
	"qp_attach_comp_cntr@65", "query_comp_cntr_caps@65", "query_device_ex", "query_ece", "query_port",
	"query_port_speed@62", "query_qp", "query_qp_data_in_order", "query_rt_values", "query_srq",
	"read_comp_cntr@65", "read_counters", "read_err_comp_cntr@65", "reg_dm_mr", "reg_dmabuf_mr",
	"reg_mr", "reg_mr_ex@59", "req_notify_cq", "rereg_mr", "resize_cq", "set_comp_cntr@65", "set_ece",
	"set_err_comp_cntr@65", "unimport_dm", "unimport_mr", "unimport_pd",
};

#define NAMES (sizeof(names) / sizeof(names[0]))

/* What has which context, by version. */
static const struct {
	int number, version;
	size_t context_bytes;
} versions[] = {
	{ 34, 44, 648 }, { 57, 57, 648 }, { 59, 59, 672 }, { 59, 62, 680 }, { 64, 64, 696 }, { 65, 65, 696 },
};

#define VERSIONS (sizeof(versions) / sizeof(versions[0]))

/* The place of the operation of names[at] in the table of that version, or -1. */
static int place_in(int version, size_t at)
{
	int place = 0;
	size_t before;

	for (before = 0; before <= at; before++) {
		const char *since = strchr(names[before], '@');

		if (since && atoi(since + 1) > version) {
			if (before == at)
				return -1;
			continue;
		}
		if (before == at)
			return place;
		place++;
	}
	return -1;
}

static size_t named(const char *name)
{
	size_t at;

	for (at = 0; at < NAMES; at++) {
		if (!strcmp(names[at], name))
			return at;
	}
	abort();
}

static void sure(bool condition, const char *what, int version)
{
	if (condition)
		return;
	printf("%d of number %d: %s\n", version, PRIVATE_ABI, what);
	exit(1);
}

/* What verbs_init_context of a library with such contexts leaves. */
static void *made_with(size_t bytes)
{
	uint8_t *start = calloc(1, CONTEXT_ROOM);
	struct ibv_context *context = (void *)(start + bytes - sizeof(*context));

	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	memcpy((char *)context - sizeof(bytes), &bytes, sizeof(bytes));
	return start;
}

static void (*operation(size_t slot))(void)
{
	return (void (*)(void))(0x1000 + slot);
}

/* What verbs_set_ops of that version shows programs of this table. */
static void take(int version, const struct verbs_context_ops *table, struct ibv_context *context)
{
#define SHOW(name) context->ops.name = (void *)table->slots[place_in(version, named(#name))]
	SHOW(poll_cq);
	SHOW(post_recv);
	SHOW(post_send);
	SHOW(post_srq_recv);
	SHOW(req_notify_cq);
}

static void check(size_t at, const struct verbs_context_ops *smallest)
{
	int version = versions[at].version;
	void *start = made_with(versions[at].context_bytes);
	const struct library *library = library_of(start);
	struct verbs_context_ops table;
	size_t name, other;

	sure(library && library->context_bytes == versions[at].context_bytes, "not known", version);
	place_operations(library, smallest, &table);
	for (name = 0; name < NAMES; name++) {
		int place = place_in(version, name), old = place_in(0, name);

		if (place < 0)
			continue;
		sure(table.slots[place] == (old < 0 ? NULL : smallest->slots[old]), names[name], version);
	}
	for (other = 0; other < VERSIONS; other++) {
		bool same = place_in(versions[other].version, named("req_notify_cq")) ==
			    place_in(version, named("req_notify_cq"));

		take(versions[other].version, &table, context_of(library, start));
		sure(are_placed(context_of(library, start), smallest) == same, "another's table", version);
	}
	free(start);
}

int main(void)
{
	struct verbs_context_ops smallest = { 0 };
	size_t at, bytes, known = 0;

	for (at = 0; at < SLOTS; at++)
		smallest.slots[at] = operation(at);
	for (at = 0; at < VERSIONS; at++) {
		if (versions[at].number != PRIVATE_ABI)
			continue;
		check(at, &smallest);
		known++;
	}
	sure(known == LIBRARIES, "libraries are missing here", 0);
	/* One that is not known, and what no library has made. */
	for (bytes = 600; bytes < 800; bytes += sizeof(void *)) {
		void *start = made_with(bytes);
		bool is_known = false;

		for (at = 0; at < LIBRARIES; at++)
			is_known |= libraries[at].context_bytes == bytes;
		sure(!library_of(start) == !is_known, "a context of another size", (int)bytes);
		memset(start, 0, CONTEXT_ROOM);
		sure(!library_of(start), "nothing at all", (int)bytes);
		free(start);
	}
	printf("library=ok %d\n", PRIVATE_ABI);
	return 0;
}
