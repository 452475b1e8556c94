// SPDX-License-Identifier: GPL-2.0
/*
 * Ends of programs, for the tests.
 *
 *   kills COUNT DEVICE DEVICE  so many times two programs, one at each device, that write to and read from each
 *                              other; one is killed, in turn this one and that one, at any moment. The other
 *                              one has to end by itself.
 *   holds DEVICE DEVICE        has one of everything in use, says "holding", and ends when the devices do.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "ends.h"

#define END_SECONDS 120

struct told {
	uint32_t number;
	uint32_t rkey;
	uint64_t addr;
};

/* Until an error says that the other end is gone. */
static void write_and_read(struct end *end, const struct told *other)
{
	struct ibv_sge sge = piece(end, 0, 50000);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	int posted = 0, count;
	struct ibv_wc wc;

	for (;;) {
		while (posted < DEPTH) {
			struct ibv_send_wr wr = request(1, posted & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
							&sge, 1);

			wr.wr.rdma.remote_addr = other->addr + BYTES / 2;
			wr.wr.rdma.rkey = other->rkey;
			if (post(end, wr))
				break;
			posted++;
		}
		count = ibv_poll_cq(end->cq, 1, &wc);
		if (count > 0 && wc.status == IBV_WC_SUCCESS)
			posted--;
		else if (count || ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init) ||
			 attr.qp_state != IBV_QPS_RTS)
			return;
	}
}

/* One of the two. What the other one does not say any more it hears as an end of its pipe. */
static void one_end(const char *device, int from, int to, int ready)
{
	struct told own, other;
	struct end end;

	open_end(&end, device);
	own.number = end.qp->qp_num;
	own.rkey = end.mr->rkey;
	own.addr = (uintptr_t)end.bytes;
	CHECK(!to_init(end.qp, ALL_ACCESS));
	if (write(to, &own, sizeof(own)) != sizeof(own) || read(from, &other, sizeof(other)) != sizeof(other))
		exit(0);
	CHECK(!to_rtr(end.qp, other.number) && !to_rts(end.qp, 7));
	CHECK(write(ready, "", 1) == 1);
	write_and_read(&end, &other);
	close_end(&end);
	exit(0);
}

static pid_t start(const char *device, int from, int to, int others_from, int others_to, int ready)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid)
		return pid;
	signal(SIGPIPE, SIG_IGN);
	close(others_from);
	close(others_to);
	one_end(device, from, to, ready);
	return 0;
}

/* Whether it ended as it should, in time. */
static int ends(pid_t pid, int *status)
{
	time_t until = time(NULL) + END_SECONDS;

	while (time(NULL) < until) {
		if (waitpid(pid, status, WNOHANG) == pid)
			return 1;
		usleep(1000);
	}
	return 0;
}

static void one_kill(int round, char **devices)
{
	int there[2], back[2], ready[2], status;
	char byte;
	pid_t ends_of[2];
	int victim = (round ^ round >> 2) & 1, both;

	CHECK(!pipe(there) && !pipe(back) && !pipe(ready));
	ends_of[0] = start(devices[0], back[0], there[1], there[0], back[1], ready[1]);
	ends_of[1] = start(devices[1], there[0], back[1], back[0], there[1], ready[1]);
	close(there[0]);
	close(there[1]);
	close(back[0]);
	close(back[1]);
	close(ready[1]);
	/* Three times of four both are at it; else they are at their beginning. */
	for (both = 0; round % 4 != 3 && both < 2; both++)
		CHECK(read(ready[0], &byte, 1) == 1);
	usleep(random_number() % 20000);
	CHECK(!kill(ends_of[victim], SIGKILL));
	CHECK(ends(ends_of[victim], &status));
	if (!ends(ends_of[!victim], &status)) {
		printf("kill %d: the other end goes on\n", round);
		kill(ends_of[!victim], SIGKILL);
		exit(1);
	}
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(ready[0]);
}

static void *wait_for_completions(void *context)
{
	struct end *end = context;
	struct ibv_cq *cq;
	void *own;

	while (!ibv_get_cq_event(end->channel, &cq, &own))
		ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void *work(void *context)
{
	struct end *ends_of = context;
	struct told other = {
		.rkey = ends_of[1].mr->rkey,
		.addr = (uintptr_t)ends_of[1].bytes,
	};

	write_and_read(&ends_of[0], &other);
	return NULL;
}

static void start_thread(void *(*run)(void *), void *context)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, run, context));
}

/* In a group, with receives, and a shared receive queue that nobody uses. */
static void hold_others(struct end *end)
{
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 1 } };
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_ah_attr attr = { .dlid = 1, .port_num = 1 };
	struct ibv_sge sge = piece(end, 0, 4096 + GRH);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_srq *srq = ibv_create_srq(end->pd, &init);
	struct end datagrams = *end;

	CHECK(srq && !ibv_post_srq_recv(srq, &wr, &bad));
	CHECK(ibv_create_ah(end->pd, &attr));
	CHECK(ibv_reg_mr(end->pd, end->bytes, 1 << 20, 0));
	datagrams.qp = new_qp_of(end, end->pd, IBV_QPT_UD, NULL);
	to_datagrams(datagrams.qp);
	CHECK(!ibv_attach_mcast(datagrams.qp, &group, 0xc001));
	CHECK(!post_recv(&datagrams, 1, &sge, 1));
}

static void hold(char **devices)
{
	struct end ends_of[2], waiting;
	struct ibv_async_event event;

	open_end(&ends_of[0], devices[0]);
	open_end(&ends_of[1], devices[1]);
	open_end(&waiting, devices[1]);
	connect_both(&ends_of[0], &ends_of[1]);
	hold_others(&ends_of[0]);
	hold_others(&ends_of[1]);
	CHECK(!ibv_req_notify_cq(waiting.cq, 0));
	start_thread(wait_for_completions, &waiting);
	start_thread(work, ends_of);
	puts("holding");
	fflush(stdout);
	while (!ibv_get_async_event(waiting.context, &event)) {
		ibv_ack_async_event(&event);
		if (event.event_type == IBV_EVENT_DEVICE_FATAL)
			break;
	}
	/* What it has ends with it. */
	puts("held=ok");
	exit(0);
}

int main(int count, char **words)
{
	int round;

	if (count == 4 && !strcmp(words[1], "holds")) {
		hold(words + 2);
	} else if (count == 5 && !strcmp(words[1], "kills")) {
		for (round = 0; round < atoi(words[2]); round++)
			one_kill(round, words + 3);
		printf("kills=%d\n", round);
		return 0;
	}
	return 2;
}
