/* SPDX-License-Identifier: GPL-2.0 */
/*
 * RDMA over windows: a device for each window.
 *
 * Locks, outermost first: the window's (callbacks of sluice_window_client.h), device->lock, cq->lock.
 * device->lock guards everything that frames touch: lanes, queue pairs, memory regions. Who holds it
 * calls nothing that takes the window's.
 */
#ifndef SR_H
#define SR_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#include "sluice_window_client.h"
#include "uapi/sluice_rdma.h"
#include "sr_channel.h"

#define SR_QPS_MAX		4096
#define SR_WRS_MAX		4096
#define SR_SGES_MAX		16
#define SR_CQS_MAX		4096
#define SR_CQES_MAX		65535
#define SR_MRS_MAX		65536
#define SR_PDS_MAX		4096
/* READs under way in each direction of a queue pair. */
#define SR_READS_MAX		16
#define SR_MESSAGE_BYTES_MAX	(1ULL << 31)
/* Frames without bytes that wait for room; peers that keep the rules have three for each queue pair. */
#define SR_OWED_MAX		4096
/* Numbers of queue pairs within a host; the lowest and the highest mean something else elsewhere. */
#define SR_NUMBER_MIN		16U
#define SR_NUMBER_MAX		((1U << SR_NUMBER_BITS) - 2)
/* The doorbell that is rung for frames, where a host has so many. */
#define SR_VECTOR		1

struct sr_device;
struct sr_qp;

/* A frame without bytes. */
struct sr_owed {
	u8 what;
	u8 flags;
	u16 code;
	u32 to;
	u32 psn;
	u64 seq;
};

/* A host of the window, this one among them, as far as frames go to it and come from it. */
struct sr_lane {
	struct sr_device *device;
	u32 peer;
	/* The link is up; in the order in which a channel is made. */
	bool linked;
	bool told;
	bool borrowed;
	bool told_ready;
	bool ready;
	/* There is a channel. */
	bool up;
	/* The peer has said what cannot be; its link is to be ended. */
	bool broken;
	/* It rings when frames come for this host. */
	bool rings;
	struct sr_pieces pieces;
	struct sr_channel channel;
	struct sr_owed *owed;
	u32 owed_first;
	u32 owed_count;
	/* Queue pairs with something to send, in turn. */
	struct list_head turns;
};

struct sr_device {
	struct ib_device ib;
	struct sw_window *window;
	struct mutex lock;
	bool registered;
	/* What ib_core knows of the port. */
	bool port_told;
	bool removed;
	/* A slot is held, as the view says. */
	bool held;
	struct sw_view view;
	u64 ring_bytes;
	struct sr_lane lanes[SW_HOSTS_MAX];
	/* What goes to this host itself. */
	u8 *own_ring;
	struct sw_view own_view;

	struct xarray qps;
	u32 qp_count;
	u32 next_number;
	struct xarray keys;
	u32 key_count;

	struct workqueue_struct *queue;
	struct delayed_work work;
	struct delayed_work state_work;
	/* When a queue pair is to be looked at; U64_MAX: never. */
	u64 due_ns;
};

struct sr_mr {
	struct ib_mr ib;
	struct ib_umem *umem;
	u32 access;
	u64 start;
	u64 length;
	/* Of the first byte in its page. */
	u32 offset;
	void **pages;
};

struct sr_shell {
	struct list_head list;
	/*
	 * For completions, whose readers look at the number after poll_cq() has returned, when the queue
	 * pair may be gone. A shell lives as long as its completion queue.
	 */
	struct ib_qp ib;
};

struct sr_cq {
	struct ib_cq ib;
	struct sr_device *device;
	spinlock_t lock;
	struct ib_wc *ring;
	u32 size;
	u32 head;
	u32 count;
	bool armed;
	bool armed_solicited;
	bool overflowed;
	struct list_head shells;
	struct list_head free_shells;
};

struct sr_sge {
	u64 addr;
	u32 len;
	u32 lkey;
};

struct sr_wqe {
	u64 wr_id;
	u64 length;
	/* Bytes that a READ has brought. */
	u64 got;
	u64 remote_addr;
	u32 rkey;
	u32 imm;
	u32 psn;
	u8 opcode;
	u8 sge_count;
	bool signaled;
	bool solicited;
	bool fenced;
	struct sr_sge *sges;
};

struct sr_rwqe {
	u64 wr_id;
	u64 length;
	u8 sge_count;
	struct sr_sge *sges;
};

/* A request whose answer has to wait for its turn: a READ, or what comes behind one. */
struct sr_answer {
	bool reads;
	struct sr_frame request;
	u64 offset;
	struct sr_owed owed;
};

/* READs, and behind each at most one other answer that counts, and an error. */
#define SR_ANSWERS_MAX (2 * SR_READS_MAX + 2)

struct sr_qp {
	struct ib_qp ib;
	struct sr_device *device;
	/* Of its lane; empty when it has nothing to send. */
	struct list_head turn;
	u32 number;
	/* Its host's slot is not the one that it was made with: it has no peers any more. */
	bool stale;
	enum ib_qp_state state;
	struct ib_qp_attr attr;
	struct ib_qp_cap cap;
	bool sq_sig_all;
	struct sr_shell *send_shell;
	struct sr_shell *recv_shell;
	struct sr_lane *lane;

	/* Requester. Positions count requests and never wrap: answered, sent, posted. */
	struct sr_wqe *sq;
	u64 sq_head;
	u64 sq_sent;
	u64 sq_tail;
	/* Bytes of the one at sq_sent that have left. */
	u64 offset;
	u32 reads;
	u32 psn;
	u8 epoch;
	u8 rnr_left;
	bool blocked;
	/* What to do when the time is over: end, or try again. */
	bool blocked_fatal;
	u64 blocked_until_ns;
	/* Requests wait for a channel, and no longer than this; 0: none does. */
	u64 lane_until_ns;
	bool drain_wanted;

	/* Responder. */
	struct sr_rwqe *rq;
	u64 rq_head;
	u64 rq_tail;
	bool receive_taken;
	u32 expected;
	bool refused;
	bool in_message;
	struct sr_frame request;
	u64 got;
	bool waits;
	struct sr_frame waiting;
	struct sr_answer *answers;
	u32 answer_first;
	u32 answer_count;
};

static inline struct sr_device *to_device(struct ib_device *ib)
{
	return container_of(ib, struct sr_device, ib);
}

static inline struct sr_qp *to_qp(struct ib_qp *ib)
{
	return container_of(ib, struct sr_qp, ib);
}

static inline struct sr_cq *to_cq(struct ib_cq *ib)
{
	return container_of(ib, struct sr_cq, ib);
}

static inline struct sr_mr *to_mr(struct ib_mr *ib)
{
	return container_of(ib, struct sr_mr, ib);
}

/* sr_verbs.c */
void sr_verbs_set(struct sr_device *device);

/* sr_mr.c; with device->lock held but for the first two. */
struct ib_mr *sr_mr_register(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access);
int sr_mr_deregister(struct ib_mr *ib, struct ib_udata *udata);
/* NULL: there is no such memory for this protection domain and access. */
struct sr_mr *sr_mr_find(struct sr_device *device, struct ib_pd *pd, u32 key, u64 addr, u64 bytes,
			 int access);
/* Between memory that was found, and a channel. */
void sr_mr_put(struct sr_mr *mr, u64 addr, u64 bytes, struct sr_channel *channel);
void sr_mr_copy(struct sr_mr *mr, u64 addr, u64 bytes, struct sr_channel *channel, u64 offset);

/* sr_cq.c */
int sr_cq_create(struct ib_cq *ib, const struct ib_cq_init_attr *attr);
int sr_cq_destroy(struct ib_cq *ib, struct ib_udata *udata);
int sr_cq_poll(struct ib_cq *ib, int count, struct ib_wc *completions);
int sr_cq_arm(struct ib_cq *ib, enum ib_cq_notify_flags flags);
/* device->lock held. */
struct sr_shell *sr_cq_shell(struct sr_cq *cq, u32 number);
void sr_cq_forget(struct sr_cq *cq, struct sr_shell *shell, bool free);
void sr_cq_complete(struct sr_cq *cq, const struct ib_wc *completion, bool solicited);

/* sr_qp.c */
int sr_qp_create(struct ib_qp *ib, struct ib_qp_init_attr *attr, struct ib_udata *udata);
int sr_qp_modify(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int sr_qp_query(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init);
int sr_qp_destroy(struct ib_qp *ib, struct ib_udata *udata);
int sr_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
int sr_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);
/* device->lock held: to ERR, everything flushed. */
void sr_qp_fail(struct sr_qp *qp);
void sr_qp_event(struct sr_qp *qp, enum ib_event_type event);

/* sr_sges.c; device->lock held. -EFAULT: nothing was done, as one of the places is not the program's. */
int sr_gather(struct sr_qp *qp, const struct sr_sge *sges, int count, u64 offset, u64 bytes,
	      struct sr_channel *channel, const struct sr_frame *header);
int sr_scatter(struct sr_qp *qp, const struct sr_sge *sges, int count, u64 offset, u64 bytes,
	       struct sr_channel *channel);

/* sr_requester.c; device->lock held. */
void sr_requester_start(struct sr_qp *qp);
void sr_requester_flush(struct sr_qp *qp);
bool sr_may_send(const struct sr_qp *qp);
/* 1: a piece has left, and there may be more; 0: nothing to send; -EAGAIN: no room; -EPROTO. */
int sr_requester_send(struct sr_qp *qp);
void sr_requester_answered(struct sr_qp *qp, const struct sr_frame *frame);
void sr_requester_not_yet(struct sr_qp *qp, const struct sr_frame *frame);
void sr_requester_ready(struct sr_qp *qp, const struct sr_frame *frame);
void sr_requester_data(struct sr_qp *qp, const struct sr_frame *frame);
/* The oldest request ends so, the queue pair in any case. */
void sr_requester_give_up(struct sr_qp *qp, enum ib_wc_status status);
/* There may be something to send: at once, or when there is a channel. */
void sr_requester_call(struct sr_qp *qp);
/* Looks at its clocks; when it is to be looked at again, U64_MAX: never. */
u64 sr_requester_due(struct sr_qp *qp, u64 now_ns);
void sr_requester_drained(struct sr_qp *qp);

/* sr_responder.c; device->lock held. */
void sr_responder_start(struct sr_qp *qp);
void sr_responder_stop(struct sr_qp *qp);
void sr_responder_lost(struct sr_qp *qp);
void sr_responder_posted(struct sr_qp *qp);
void sr_responder_came(struct sr_qp *qp, const struct sr_frame *frame);
/* As sr_requester_send(). */
int sr_responder_send(struct sr_qp *qp);
void sr_nobody(struct sr_lane *lane, const struct sr_frame *request);

/* sr_lane.c; device->lock held. */
void sr_lane_init(struct sr_lane *lane, struct sr_device *device, u32 peer);
void sr_lane_owe(struct sr_lane *lane, const struct sr_owed *owed);
void sr_lane_call(struct sr_lane *lane, struct sr_qp *qp);
void sr_lane_break(struct sr_lane *lane);
void sr_lane_begin(struct sr_lane *lane);
/* Its channel is over; @left: in order. */
void sr_lane_end(struct sr_lane *lane, bool left);
/* Takes frames and sends what waits. Whether there may be more. */
bool sr_lane_run(struct sr_lane *lane, int frames);
/* Puts what waits now, as long as there is room. */
void sr_lane_flush(struct sr_lane *lane);
/* Says that this host sleeps. False: there are frames. */
bool sr_lane_sleep(struct sr_lane *lane);

/* sr_main.c */
/* A queue pair wants to be looked at then. */
void sr_device_alarm(struct sr_device *device, u64 when_ns);
void sr_device_kick(struct sr_device *device);
/* For who polls: takes frames if nobody else does. */
void sr_device_poll(struct sr_device *device);

#endif
