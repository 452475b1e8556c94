/* SPDX-License-Identifier: GPL-2.0 */
/*
 * RDMA over windows: a device for each window.
 *
 * Locks, outermost first: the window's (callbacks of sluice_window_client.h), device->lock; below these, one
 * at a time, spin locks: device->posted_lock, qp->sq_lock, rq->lock, cq->lock.
 * device->lock guards everything that frames touch: lanes, queue pairs, memory regions. Who holds it
 * calls nothing that takes the window's. Who posts takes spin locks only (decision 0082).
 */
#ifndef SR_H
#define SR_H

#include <linux/hrtimer.h>
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

/* By numbers of queue pairs, and by addresses of the network device. */
#define SR_PORTS		2
#define SR_ROCE_PORT		2
#define SR_GIDS_MAX		64
#define SR_QPS_MAX		4096
#define SR_WRS_MAX		4096
#define SR_SGES_MAX		16
/* Bytes of a request itself, of mapped queues. */
#define SR_INLINE_BYTES_MAX	(SR_SGES_MAX * 16)
#define SR_CQS_MAX		4096
#define SR_CQES_MAX		65535
/* With memory windows. */
#define SR_MRS_MAX		65536
#define SR_PDS_MAX		4096
/* READs and atomics under way in each direction of a queue pair. */
#define SR_READS_MAX		16
#define SR_MESSAGE_BYTES_MAX	(1ULL << 31)
/* Of a datagram; the ports' MTU. */
#define SR_DATAGRAM_BYTES_MAX	4096
#define SR_SRQS_MAX		4096
/* Of memory that is registered by IB_WR_REG_MR. */
#define SR_FAST_PAGES_MAX	512
/* Memory of the kernel's, by its addresses, for queue pairs of the kernel's; no key of a region's. */
#define SR_LOCAL_DMA_KEY	0
/* The part of a key that says which region it is of; the rest is its owner's to choose (IBTA 10.6.3.3). */
#define SR_KEY_SHIFT		8
#define SR_AHS_MAX		65536
/* Frames without bytes that wait for room; peers that keep the rules have three for each queue pair. */
#define SR_OWED_MAX		4096
/* Numbers of queue pairs within a host; the lowest and the highest mean something else elsewhere. */
#define SR_NUMBER_MIN		16U
#define SR_NUMBER_MAX		((1U << SR_NUMBER_BITS) - 2)
/* The doorbell that is rung for frames, where a host has so many. */
#define SR_VECTOR		1

struct sr_device;
struct sr_gsi;
struct sr_qp;

struct sr_ucontext {
	struct ib_ucontext ib;
};

/* Memory that a program maps. */
struct sr_shared {
	struct rdma_user_mmap_entry entry;
	void *memory;
	size_t bytes;
};

/* SR_KIND_MANAGEMENT; as it lies in the mailbox. */
struct sr_mail {
	union ib_gid source;
	union ib_gid destination;
	u8 mad[256];
};

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
	/* It could not be, which was said. */
	bool failed;
	/* What ib_core knows of the ports. */
	bool told[SR_PORTS];
	/* ib_core is to forget it, and nobody is told of anything any more; it has, and there are no users. */
	bool removed;
	bool forgotten;
	/* A slot is held, as the view says. */
	bool held;
	struct sw_view view;
	u64 ring_bytes;
	struct sr_lane lanes[SW_HOSTS_MAX];
	/* What goes to this host itself. */
	u8 *own_ring;
	struct sw_view own_view;

	struct net_device *net;
	struct sr_gsi *gsi[SR_PORTS];

	struct xarray qps;
	u32 qp_count;
	u32 next_number;
	/* Regions, by what their keys say (SR_KEY_SHIFT). */
	struct xarray keys;
	u32 key_count;

	/* Queue pairs to which users in the kernel have posted. */
	spinlock_t posted_lock;
	struct list_head posted;

	struct workqueue_struct *queue;
	struct delayed_work work;
	struct delayed_work state_work;
	/* When a queue pair is to be looked at; U64_MAX: never. */
	u64 due_ns;

	/* sr_watch.c: queue pairs whose mapped queues are looked at, and peers need not ring. */
	bool awake;
	struct list_head watched;
	struct hrtimer watch_timer;
	bool watch_over;
	/* How often a program has called, and what the timer knows of it. */
	u64 looks;
	u64 looks_seen;
	/* Requests that were taken from mapped queues, and what the timer knows of it; these and frames. */
	u64 taken;
	u64 taken_seen;
	u64 worked;
	/* The worker does nothing else, as completion queues say. */
	bool attended;
};

struct sr_mr {
	struct ib_mr ib;
	/* NULL: of a user in the kernel. */
	struct ib_umem *umem;
	/* What opens it, if anything does, and for what. */
	u32 key;
	bool open;
	u32 access;
	u64 start;
	u64 length;
	/* Of the first byte in its page. */
	u32 offset;
	void **pages;
	/* What IB_WR_REG_MR is to bring about; its owner's until then. */
	void **next_pages;
	u32 next_count;
	u32 pages_max;
	/* Windows that are bound to it. */
	u32 windows;
	/* Or it is one itself, whose pages are the region's; of those of the second kind, through which queue pair. */
	struct sr_mw *mw;
	struct sr_mr *region;
	struct sr_qp *qp;
	struct list_head of_qp;
};

/* A memory window: a part of a region, under a key of its own, for peers only (IBTA 10.6.7). */
struct sr_mw {
	struct ib_mw ib;
	struct sr_mr mr;
};

struct sr_shell {
	struct list_head list;
	/*
	 * For completions, whose readers look at the number after poll_cq() has returned, when the queue
	 * pair may be gone. A shell lives as long as its completion queue.
	 */
	struct ib_qp ib;
	/* What they say: that, or the queue pair itself, of whose end users in the kernel know. */
	struct ib_qp *told;
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
	/* Of a program that has it mapped, instead of the ring; the position behind the last. */
	struct sr_shared *shared;
	u32 mask;
	u32 tail;
	struct list_head shells;
	struct list_head free_shells;
};

struct sr_sge {
	u64 addr;
	u32 len;
	u32 lkey;
};

/* Where a datagram goes. */
struct sr_to {
	u32 number;
	u32 qkey;
	union ib_gid sgid;
	union ib_gid dgid;
};

struct sr_ah {
	struct ib_ah ib;
	struct rdma_ah_attr attr;
	/* Zeros where it says none. */
	union ib_gid sgid;
	union ib_gid dgid;
};

struct sr_wqe {
	u64 wr_id;
	u64 length;
	/* Bytes that a READ has brought. */
	u64 got;
	u64 remote_addr;
	/* Of an atomic: to compare with or to add, and to swap in. */
	u64 compare_add;
	u64 swap;
	u32 rkey;
	/* Or a key to invalidate. */
	u32 imm;
	u32 psn;
	u8 opcode;
	u8 sge_count;
	bool signaled;
	bool solicited;
	bool fenced;
	/* Nobody else hears of it: a registration, a window's binding, or the end of one; and it was carried out. */
	bool local;
	bool done;
	/* Of these. */
	u32 access;
	struct sr_to to;
	struct sr_sge *sges;
	/* Instead of them, and as long as the request; where its queue pair has such. */
	bool inlined;
	u8 *bytes;
};

struct sr_rwqe {
	u64 wr_id;
	u64 length;
	u8 sge_count;
	struct sr_sge *sges;
};

/* Receives. Positions never wrap; they change behind the lock. */
struct sr_rq {
	spinlock_t lock;
	struct sr_rwqe *wqes;
	struct sr_sge *sges;
	u32 size;
	u32 sges_max;
	u64 head;
	u64 tail;
	/* The program fills them there. */
	struct sr_shared *shared;
	u32 at;
	u32 mask;
	bool lied;
};

struct sr_srq {
	struct ib_srq ib;
	struct sr_rq rq;
	/* Of fewer than these is told; 0: of none. */
	u32 limit;
};

enum sr_answer_kind {
	SR_ANSWER_SHORT,
	SR_ANSWER_READ,
	SR_ANSWER_ATOMIC,
};

/*
 * A request whose answer has to wait for its turn: a READ, an atomic, or what comes behind one. What an
 * atomic found is kept here until it has left: the request is never carried out a second time.
 */
struct sr_answer {
	enum sr_answer_kind kind;
	struct sr_frame request;
	u64 offset;
	u64 found;
	struct sr_owed owed;
};

/* READs and atomics, and behind each at most one other answer that counts; and NOT_YET and READY, or an error. */
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
	/* Its user is, and posts from where nobody may sleep. */
	bool in_kernel;
	/* Of device->posted, behind its lock; empty when nothing was posted. */
	struct list_head posted;

	/*
	 * Requester. Positions count requests and never wrap: answered, sent, taken, and behind sq_lock
	 * posted. device->lock guards the others; who posts looks at the first as well.
	 */
	struct sr_wqe *sq;
	spinlock_t sq_lock;
	u64 sq_posted;
	u64 sq_head;
	u64 sq_sent;
	u64 sq_tail;
	/*
	 * Where its program posts, if it has that mapped: the position there of the next one, and how much it is
	 * ahead of sq_posted. It said what cannot be: nothing is taken from there until it is reset.
	 */
	struct sr_shared *shared;
	struct list_head watch;
	u32 send_at;
	u32 send_mask;
	u32 send_taken;
	u32 send_shift;
	bool lied;
	/* Of all places of sq, where a request may have its bytes in itself. */
	u8 *inline_bytes;
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
	struct sr_rq rq;
	/* Instead of its own; NULL: there is none. */
	struct sr_srq *srq;
	/* Of the message under way, if one was taken. */
	bool receive_taken;
	struct sr_rwqe receive;
	struct sr_sge receive_sges[SR_SGES_MAX];
	u32 expected;
	/* The program was told that the peer has sent something. */
	bool established;
	bool refused;
	bool in_message;
	struct sr_frame request;
	u64 got;
	/* The peer's request that is to come again when there is a receive. */
	bool waits;
	struct sr_frame waiting;
	/*
	 * What each host was told, which asked before there was a peer; what of it is 0: nothing. A stranger's is
	 * not to take the place of the peer's.
	 */
	struct sr_owed early[SW_HOSTS_MAX];
	struct sr_answer *answers;
	u32 answer_first;
	u32 answer_count;

	/* Memory windows of the second kind that it has bound. */
	struct list_head windows;

	/* Of datagrams. */
	struct list_head groups;
	/* Of queue pair 1. */
	struct sr_gsi *gsi;
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

static inline struct sr_mw *to_mw(struct ib_mw *ib)
{
	return container_of(ib, struct sr_mw, ib);
}

static inline bool sr_is_reliable(const struct sr_qp *qp)
{
	return qp->ib.qp_type == IB_QPT_RC;
}

static inline bool sr_is_connected(const struct sr_qp *qp)
{
	return qp->ib.qp_type == IB_QPT_RC || qp->ib.qp_type == IB_QPT_UC;
}

static inline bool sr_is_gsi(const struct sr_qp *qp)
{
	return qp->ib.qp_type == IB_QPT_GSI;
}

/* Whether a place that a request names is the kernel's, and its user may name those. */
static inline bool sr_is_direct(const struct sr_qp *qp, u32 key)
{
	return qp->in_kernel && key == SR_LOCAL_DMA_KEY;
}

static inline bool sr_is_atomic(u32 opcode)
{
	return opcode == IB_WR_ATOMIC_CMP_AND_SWP || opcode == IB_WR_ATOMIC_FETCH_AND_ADD;
}

/* sr_verbs.c */
void sr_verbs_set(struct sr_device *device);

/* sr_mr.c; with device->lock held but for the first four. */
struct ib_mr *sr_mr_register(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access);
int sr_mr_deregister(struct ib_mr *ib, struct ib_udata *udata);
struct ib_mr *sr_mr_allocate(struct ib_pd *pd, enum ib_mr_type type, u32 pages);
int sr_mr_map(struct ib_mr *ib, struct scatterlist *list, int count, unsigned int *offset);
/* What requests of users in the kernel do with what they have allocated. -EINVAL: that cannot be done. */
int sr_mr_open(struct sr_device *device, struct ib_pd *pd, u32 key, u32 access);
int sr_mr_close(struct sr_device *device, struct ib_pd *pd, u32 key);
/* As a peer asks for it. -EACCES: it may not. */
int sr_mr_close_remote(struct sr_device *device, struct ib_pd *pd, u32 key);
/* NULL: there is no such memory for this protection domain and access. */
struct sr_mr *sr_mr_find(struct sr_device *device, struct ib_pd *pd, u32 key, u64 addr, u64 bytes,
			 int access);
/* For the peer of this queue pair, for whom there are windows as well. */
struct sr_mr *sr_mr_find_remote(struct sr_qp *qp, u32 key, u64 addr, u64 bytes, int access);
/* A random key; nothing is open before it has one, and nothing behind it when it has none any more. No lock held. */
int sr_mr_name(struct sr_device *device, struct sr_mr *mr, bool open);
/* Between memory that was found, and a channel. */
void sr_mr_put(struct sr_mr *mr, u64 addr, u64 bytes, struct sr_channel *channel);
void sr_mr_copy(struct sr_mr *mr, u64 addr, u64 bytes, struct sr_channel *channel, u64 offset);
void sr_mr_write(struct sr_mr *mr, u64 addr, u64 bytes, const u8 *from);
/* Eight bytes in memory that was found. NULL: they are not aligned there. */
u64 *sr_mr_word(struct sr_mr *mr, u64 addr);

/* sr_mw.c; with device->lock held but for the first two. */
int sr_mw_allocate(struct ib_mw *ib, struct ib_udata *udata);
int sr_mw_free(struct ib_mw *ib);
/* As a request says it. -EINVAL: that cannot be done. */
int sr_mw_bind(struct sr_qp *qp, const struct sr_wqe *wqe);
/* One of the second kind that this queue pair has bound; its own request, or its peer's. */
int sr_mw_invalidate(struct sr_qp *qp, u32 key);
/* It goes, or begins anew, and what it has bound goes. */
void sr_mw_forget(struct sr_qp *qp);

/* sr_cq.c */
int sr_cq_create(struct ib_cq *ib, const struct ib_cq_init_attr *attr, struct ib_udata *udata);
int sr_cq_destroy(struct ib_cq *ib, struct ib_udata *udata);
int sr_cq_poll(struct ib_cq *ib, int count, struct ib_wc *completions);
int sr_cq_arm(struct ib_cq *ib, enum ib_cq_notify_flags flags);
bool sr_cq_is_armed(const struct sr_cq *cq);
/* Whether all that belongs to it is looked at just now. */
void sr_cq_attend(struct sr_cq *cq, u32 attended);
/* device->lock held. */
struct sr_shell *sr_cq_shell(struct sr_cq *cq, struct sr_qp *qp);
void sr_cq_forget(struct sr_cq *cq, struct sr_shell *shell, bool free);
void sr_cq_complete(struct sr_cq *cq, const struct ib_wc *completion, bool solicited);

/* sr_rq.c */
int sr_rq_init(struct sr_rq *rq, u32 wrs, u32 sges);
void sr_rq_free(struct sr_rq *rq);
int sr_rq_post(struct sr_rq *rq, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);
/* Drops all. */
void sr_rq_clear(struct sr_rq *rq);
u64 sr_rq_count(struct sr_rq *rq);
/* False: there is none. */
bool sr_rq_take(struct sr_rq *rq, struct sr_rwqe *to);
/* One was taken; device->lock held. */
void sr_srq_look(struct sr_srq *srq);
int sr_srq_create(struct ib_srq *ib, struct ib_srq_init_attr *init, struct ib_udata *udata);
int sr_srq_modify(struct ib_srq *ib, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		  struct ib_udata *udata);
int sr_srq_query(struct ib_srq *ib, struct ib_srq_attr *attr);
int sr_srq_destroy(struct ib_srq *ib, struct ib_udata *udata);
int sr_srq_post_recv(struct ib_srq *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);

/* sr_datagram.c */
int sr_ah_create(struct ib_ah *ib, struct rdma_ah_init_attr *init, struct ib_udata *udata);
int sr_ah_query(struct ib_ah *ib, struct rdma_ah_attr *attr);
int sr_ah_destroy(struct ib_ah *ib, u32 flags);
int sr_datagram_attach(struct ib_qp *ib, union ib_gid *gid, u16 lid);
int sr_datagram_detach(struct ib_qp *ib, union ib_gid *gid, u16 lid);
/* Where a request goes; -EINVAL, -EOPNOTSUPP. */
int sr_datagram_address(struct sr_qp *qp, struct sr_wqe *wqe, const struct ib_send_wr *wr);
/* device->lock held: all that follow. Sends what can leave. 0: all; 1: the others wait for their turn at a lane; -EAGAIN: for its room. */
int sr_datagram_send(struct sr_qp *qp, struct sr_lane **waits_for);
/* There may be something to send, or a channel. */
void sr_datagram_call(struct sr_qp *qp);
u64 sr_datagram_due(struct sr_qp *qp, u64 now_ns);
/* Whether a request is one, and takes it. */
bool sr_datagram_is(struct sr_device *device, const struct sr_frame *frame);
void sr_datagram_came(struct sr_device *device, struct sr_lane *lane, const struct sr_frame *frame);
void sr_datagram_forget(struct sr_qp *qp);
/* What stands in front of a datagram in its receive; IPv4's in the last 20 bytes. */
enum rdma_network_type sr_datagram_header(union rdma_network_hdr *header, const union ib_gid *from,
					  const union ib_gid *to, u64 bytes);

/* Where one who has it is reached. */
void sr_ah_gids(const struct ib_ah *ib, union ib_gid *from, union ib_gid *to);

/* sr_net.c; none with a lock held but the last two. */
int sr_net_begin(struct sr_device *device);
void sr_net_end(struct sr_device *device);
void sr_net_carries(struct sr_device *device, bool carries);
bool sr_net_is_up(const struct sr_device *device);

/* sr_gsi.c; may sleep but for posts. */
int sr_gsi_begin(struct sr_device *device);
void sr_gsi_end(struct sr_device *device);
int sr_gsi_create(struct sr_qp *qp, const struct ib_qp_init_attr *init);
void sr_gsi_destroy(struct sr_qp *qp);
int sr_gsi_post_send(struct sr_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
int sr_gsi_post_recv(struct sr_qp *qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);
/* A datagram is in the mailbox; it may be for another host. */
void sr_gsi_came(struct sr_device *device, const struct sr_mail *mail);

/* sr_qp.c */
int sr_qp_create(struct ib_qp *ib, struct ib_qp_init_attr *attr, struct ib_udata *udata);
int sr_qp_modify(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int sr_qp_query(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init);
int sr_qp_destroy(struct ib_qp *ib, struct ib_udata *udata);
/* device->lock held: to ERR, everything flushed. */
void sr_qp_fail(struct sr_qp *qp);
void sr_qp_event(struct sr_qp *qp, enum ib_event_type event);

/* sr_post.c; from anywhere. */
int sr_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
int sr_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);
/* device->lock held: what was posted is the requester's from now on. */
void sr_post_take(struct sr_qp *qp);
/* Of users in the kernel, receives as well. */
void sr_post_take_all(struct sr_device *device);
/* It is going, and nobody posts any more. */
void sr_post_forget(struct sr_qp *qp);
/* Checks a request and takes it. Behind sq_lock, or for mapped queues device->lock. */
int sr_post_one(struct sr_qp *qp, const struct ib_send_wr *wr);
/* IB_WR_BIND_MW, which uverbs and users in the kernel have not: of mapped queues. */
struct sr_bind_wr {
	struct ib_send_wr wr;
	u64 addr;
	u64 length;
	u32 access;
	u32 lkey;
	u32 rkey;
};
u32 sr_post_room(const struct sr_qp *qp);

/* sr_shared.c; no lock held. */
struct sr_shared *sr_shared_new(struct ib_udata *udata, size_t bytes);
void sr_shared_end(struct sr_shared *shared);
u64 sr_shared_offset(const struct sr_shared *shared);
bool sr_shared_is_asked(struct ib_udata *udata);
int sr_shared_mmap(struct ib_ucontext *context, struct vm_area_struct *vma);
void sr_shared_free(struct rdma_user_mmap_entry *entry);

/* sr_queues.c; device->lock held but for the first. */
int sr_queues_create(struct sr_qp *qp, struct ib_udata *udata);
/* Nobody looks at them any more. */
void sr_queues_end(struct sr_qp *qp);
void sr_queues_reset(struct sr_qp *qp);
/* Requests up to the oldest have ended. */
void sr_queues_freed(struct sr_qp *qp);
bool sr_queues_has_posts(const struct sr_qp *qp);
/* SLUICE_RDMA_LOOKS or _NOBODY. */
void sr_queues_say(struct sr_qp *qp, u32 call);
void sr_queues_take(struct sr_qp *qp);
/* Who posts a receive is to call. False: that is so in any case. To be followed by another look. */
bool sr_queues_want_receives(struct sr_qp *qp);
void sr_queues_have_receives(struct sr_qp *qp);
/* Ends a queue pair whose receives said what cannot be. */
void sr_queues_look(struct sr_qp *qp);
u32 sr_queues_receives(struct sr_rq *rq);
void sr_queues_take_receive(struct sr_rq *rq, struct sr_rwqe *to);
void sr_queues_clear_receives(struct sr_rq *rq);

/* sr_watch.c */
void sr_watch_begin(struct sr_device *device);
void sr_watch_end(struct sr_device *device);
/* device->lock held: a program has called, and its posts, or all of the device, are looked at for a while. */
void sr_watch_posts(struct sr_qp *qp);
void sr_watch_wake(struct sr_device *device);
/* device->lock held: takes what was posted. */
void sr_watch_take(struct sr_device *device);
/* device->lock held: its queues are its own again. */
void sr_watch_forget(struct sr_qp *qp);
/* device->lock held: whether bells are needed from now on. */
bool sr_watch_is_over(struct sr_device *device);
void sr_watch_hurry(struct sr_device *device);
void sr_watch_look(struct sr_device *device);

/* sr_sges.c; device->lock held. -EFAULT: nothing was done, as one of the places is not the program's. */
int sr_gather(struct sr_qp *qp, const struct sr_sge *sges, int count, u64 offset, u64 bytes,
	      struct sr_channel *channel, const struct sr_frame *header);
/* From a channel, or from @from. */
int sr_scatter(struct sr_qp *qp, const struct sr_sge *sges, int count, u64 offset, u64 bytes,
	       struct sr_channel *channel, const u8 *from);
/* What a program names, and what it comes to in bytes; -EINVAL: too many pieces, or bytes. */
int sr_sges_copy(struct sr_sge *to, u8 *count, u64 *length, const struct ib_sge *from, int sges,
		 u32 sges_max);

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
/* The oldest has left, where nobody answers, or names what is not the program's. */
void sr_requester_left(struct sr_qp *qp);
void sr_requester_fault(struct sr_qp *qp);
/* The oldest request ends so, the queue pair in any case; where nobody answers all are lost. */
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
/* Takes a receive, which ends with a completion. False: there is none. */
bool sr_responder_take(struct sr_qp *qp);
void sr_responder_complete(struct sr_qp *qp, struct ib_wc *completion, bool solicited);
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
/* The peer learns of what was put. */
void sr_lane_publish(struct sr_lane *lane);
/* Puts what waits now, as long as there is room. */
void sr_lane_flush(struct sr_lane *lane);
/* Says that this host sleeps. False: there are frames. */
bool sr_lane_sleep(struct sr_lane *lane);

/* sr_main.c */
/* A queue pair wants to be looked at then. */
void sr_device_alarm(struct sr_device *device, u64 when_ns);
void sr_device_kick(struct sr_device *device);
/* The ports may have come up or gone down. */
void sr_device_told(struct sr_device *device);
/* Puts it into the mailboxes of these hosts; which had no room. No lock held. */
unsigned long sr_device_mail(struct sr_device *device, const struct sr_mail *mail, unsigned long hosts);
/* For who polls: takes frames if nobody else does; of mapped queues, which are then looked at for a while, posts as well. */
void sr_device_poll(struct sr_device *device, bool watches);
/* device->lock held: takes frames. */
void sr_device_look(struct sr_device *device);

#endif
