/*
 * What calls refuse at once, and with which error number: requests that the queue pair's state,
 * its queues or its lists have no room for, and bits that nobody knows in every argument that is
 * made of bits. One process; nothing goes anywhere.
 */
#include "ends.h"

static struct end end;
static uint8_t *memory;
static struct ibv_mr *mr;

/* A call that returns an error number. */
#define IS(expected, call) do {                                                        \
        int got_ = (call);                                                              \
        NEED(got_ == (expected), "%s gives %d (%s), not %d", #call, got_, strerror(got_), \
             (expected));                                                               \
    } while (0)

/* A call that returns a pointer, and sets errno. */
#define NONE(expected, call) do {                                                      \
        errno = 0;                                                                      \
        void *made_ = (call);                                                           \
        NEED(made_ == NULL && errno == (expected), "%s gives %p", #call, made_);        \
    } while (0)

static struct ibv_qp *in_state(enum ibv_qp_state state)
{
    struct ibv_qp *qp = make_qp(&end, IBV_QPT_RC, NULL);
    struct card self = {.qpn = qp->qp_num, .gid = end.gid};
    if (state == IBV_QPS_RESET)
        return qp;
    IS(0, to_init(qp, ALL_ACCESS));
    if (state == IBV_QPS_INIT)
        return qp;
    IS(0, to_rtr(qp, &self));
    if (state == IBV_QPS_RTR)
        return qp;
    IS(0, to_rts(qp));
    if (state == IBV_QPS_ERR) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        IS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    }
    return qp;
}

/* A write of the memory to itself. */
static struct ibv_send_wr a_write(struct ibv_sge *pieces, int count, unsigned int flags)
{
    struct ibv_send_wr wr = {.sg_list = pieces, .num_sge = count, .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = flags};
    wr.wr.rdma.remote_addr = (uintptr_t)memory + 2048;
    wr.wr.rdma.rkey = mr->rkey;
    return wr;
}

static void states(void)
{
    strcpy(doing, "states");
    static const struct {
        enum ibv_qp_state state;
        int send, receive;
    } EXPECTED[] = {
        {IBV_QPS_RESET, EINVAL, EINVAL},
        {IBV_QPS_INIT, EINVAL, 0},
        {IBV_QPS_RTR, EINVAL, 0},
        {IBV_QPS_RTS, 0, 0},
        {IBV_QPS_ERR, 0, 0},
    };
    for (size_t i = 0; i < sizeof EXPECTED / sizeof EXPECTED[0]; i++) {
        struct ibv_qp *qp = in_state(EXPECTED[i].state);
        struct ibv_sge piece = {(uintptr_t)memory, 8, mr->lkey};
        struct ibv_send_wr wr = a_write(&piece, 1, 0), *bad = NULL;
        IS(EXPECTED[i].send, ibv_post_send(qp, &wr, &bad));
        NEED(!EXPECTED[i].send || bad == &wr, "bad_wr");
        struct ibv_recv_wr receive = {.wr_id = 2}, *bad_receive = NULL;
        IS(EXPECTED[i].receive, ibv_post_recv(qp, &receive, &bad_receive));
        NEED(!EXPECTED[i].receive || bad_receive == &receive, "bad_wr");
        if (EXPECTED[i].state == IBV_QPS_RTS)
            NEED(completion(end.cq).status == IBV_WC_SUCCESS, "the write");
        for (int j = 0; j < 2 && EXPECTED[i].state == IBV_QPS_ERR; j++)
            NEED(completion(end.cq).status == IBV_WC_WR_FLUSH_ERR, "not flushed");
        IS(0, ibv_destroy_qp(qp));
    }
    /* From RESET there is no way to RTR or RTS. */
    struct ibv_qp *qp = in_state(IBV_QPS_RESET);
    struct card self = {.qpn = qp->qp_num, .gid = end.gid};
    IS(EINVAL, to_rtr(qp, &self));
    IS(EINVAL, to_rts(qp));
    IS(0, ibv_destroy_qp(qp));
}

static void lists(void)
{
    strcpy(doing, "lists");
    struct ibv_qp *qp = in_state(IBV_QPS_RTS);
    struct ibv_sge pieces[3];
    for (int i = 0; i < 3; i++)
        pieces[i] = (struct ibv_sge){(uintptr_t)memory + 8 * i, 8, mr->lkey};
    /* The queue pair takes two. What is before the bad one is posted, what is behind it not. */
    struct ibv_send_wr third = a_write(pieces, 1, 0), second = a_write(pieces, 3, 0),
                       first = a_write(pieces, 2, 0), *bad = NULL;
    first.next = &second;
    second.next = &third;
    IS(EINVAL, ibv_post_send(qp, &first, &bad));
    NEED(bad == &second, "bad_wr");
    completion(end.cq);
    struct ibv_wc wc;
    NEED(ibv_poll_cq(end.cq, 1, &wc) == 0, "one too many");
    struct ibv_recv_wr receive = {.sg_list = pieces, .num_sge = 3}, *bad_receive = NULL;
    IS(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));
    NEED(bad_receive == &receive, "bad_wr");
    receive.num_sge = -1;
    IS(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 2}};
    struct ibv_srq *srq = ibv_create_srq(end.pd, &init);
    NEED(srq, "ibv_create_srq");
    receive.num_sge = (int)init.attr.max_sge + 1;
    NEED(receive.num_sge <= 3, "more than asked for");
    IS(EINVAL, ibv_post_srq_recv(srq, &receive, &bad_receive));
    NEED(bad_receive == &receive, "bad_wr");
    /* 32 bytes inline, on this queue pair and not on a read. */
    struct ibv_sge inline_piece = {(uintptr_t)memory, 33, 0};
    struct ibv_send_wr inline_wr = a_write(&inline_piece, 1, IBV_SEND_INLINE);
    IS(EINVAL, ibv_post_send(qp, &inline_wr, &bad));
    inline_piece.length = 32;
    IS(0, ibv_post_send(qp, &inline_wr, &bad));
    completion(end.cq);
    inline_wr.opcode = IBV_WR_RDMA_READ;
    IS(EINVAL, ibv_post_send(qp, &inline_wr, &bad));
    IS(0, ibv_destroy_srq(srq));
    IS(0, ibv_destroy_qp(qp));
}

static void queues(void)
{
    strcpy(doing, "queues");
    struct ibv_qp *qp = in_state(IBV_QPS_RTS);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    IS(0, ibv_query_qp(qp, &attr, IBV_QP_CAP, &init));
    NEED(init.cap.max_send_wr >= 16 && init.cap.max_recv_wr >= 16, "less than asked for");
    struct ibv_sge piece = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wr = a_write(&piece, 1, 0), *bad = NULL;
    for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
        IS(0, ibv_post_send(qp, &wr, &bad));
    IS(ENOMEM, ibv_post_send(qp, &wr, &bad));
    NEED(bad == &wr, "bad_wr");
    completion(end.cq);
    IS(0, ibv_post_send(qp, &wr, &bad));
    for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
        completion(end.cq);
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive = NULL;
    for (uint32_t i = 0; i < init.cap.max_recv_wr; i++)
        IS(0, ibv_post_recv(qp, &receive, &bad_receive));
    IS(ENOMEM, ibv_post_recv(qp, &receive, &bad_receive));
    NEED(bad_receive == &receive, "bad_wr");
    IS(0, ibv_destroy_qp(qp));
    struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(end.pd, &srq_init);
    NEED(srq, "ibv_create_srq");
    for (uint32_t i = 0; i < srq_init.attr.max_wr; i++)
        IS(0, ibv_post_srq_recv(srq, &receive, &bad_receive));
    IS(ENOMEM, ibv_post_srq_recv(srq, &receive, &bad_receive));
    IS(0, ibv_destroy_srq(srq));
}

static void bits_of_regions(void)
{
    strcpy(doing, "access flags of regions");
    for (int bit = 0; bit < 32; bit++) {
        int flag = (int)(1u << bit);
        bool known = bit < 8, optional = bit >= 20 && bit < 30;
        bool needs_local = flag == IBV_ACCESS_REMOTE_WRITE || flag == IBV_ACCESS_REMOTE_ATOMIC;
        if (needs_local || !(known || optional)) {
            NONE(EINVAL, ibv_reg_mr(end.pd, memory, 64, flag));
            errno = 0;
            NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, flag) ==
                     IBV_REREG_MR_ERR_INPUT && errno == EINVAL, "bit %d anew", bit);
            flag |= needs_local ? IBV_ACCESS_LOCAL_WRITE : 0;
        }
        if (needs_local || known || optional) {
            struct ibv_mr *made = ibv_reg_mr(end.pd, memory, 64, flag);
            NEED(made, "bit %d", bit);
            IS(0, ibv_dereg_mr(made));
        }
    }
    strcpy(doing, "device memory");
    struct ibv_alloc_dm_attr attr = {.length = 64, .comp_mask = 1};
    NONE(EINVAL, ibv_alloc_dm(end.context, &attr));
    attr.comp_mask = 0;
    struct ibv_dm *dm = ibv_alloc_dm(end.context, &attr);
    NEED(dm, "ibv_alloc_dm");
    NONE(EINVAL, ibv_reg_dm_mr(end.pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE));
    NONE(EINVAL, ibv_reg_dm_mr(end.pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED | 1 << 19));
    NONE(EINVAL, ibv_reg_dm_mr(end.pd, dm, 1, 64, IBV_ACCESS_ZERO_BASED));
    struct ibv_mr *region = ibv_reg_dm_mr(end.pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED);
    NEED(region, "ibv_reg_dm_mr");
    struct ibv_mr *empty = ibv_reg_dm_mr(end.pd, dm, 64, 0, IBV_ACCESS_ZERO_BASED);
    NEED(empty, "ibv_reg_dm_mr of no bytes");
    IS(0, ibv_dereg_mr(empty));

    /* Copies consist of whole words, inside. */
    uint8_t copy[68] = {0};
    IS(0, ibv_memcpy_to_dm(dm, 60, copy, 4));
    IS(EINVAL, ibv_memcpy_to_dm(dm, 1, copy, 4));
    IS(EINVAL, ibv_memcpy_to_dm(dm, 0, copy, 3));
    IS(EINVAL, ibv_memcpy_from_dm(copy, dm, 2, 4));
    IS(EINVAL, ibv_memcpy_from_dm(copy, dm, 0, 68));
    IS(EINVAL, ibv_memcpy_from_dm(copy, dm, UINT64_MAX - 3, 8));
    IS(EBUSY, ibv_free_dm(dm));
    IS(0, ibv_dereg_mr(region));
    IS(0, ibv_free_dm(dm));
}

static void bits_of_requests(void)
{
    strcpy(doing, "flags of requests");
    struct ibv_qp *qp = in_state(IBV_QPS_RTS);
    struct ibv_sge piece = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_mw *one = ibv_alloc_mw(end.pd, IBV_MW_TYPE_1);
    struct ibv_mw *two = ibv_alloc_mw(end.pd, IBV_MW_TYPE_2);
    NEED(one && two, "ibv_alloc_mw");
    struct ibv_send_wr *bad = NULL;
    for (int bit = 4; bit < 32; bit++) {
        struct ibv_send_wr wr = a_write(&piece, 1, 1u << bit);
        IS(EINVAL, ibv_post_send(qp, &wr, &bad));
        struct ibv_mw_bind_info info = {
            .mr = mr, .addr = (uintptr_t)memory, .length = 8, .mw_access_flags = 1u << bit};
        bool window = bit == 4 || bit == 5 || (bit >= 20 && bit < 30);
        struct ibv_mw_bind bind = {.bind_info = info};
        uint32_t rkey = one->rkey;
        IS(window ? 0 : EINVAL, ibv_bind_mw(qp, one, &bind));
        NEED(window == (one->rkey != rkey), "the key of a window that was not bound");
        if (window)
            NEED(completion(end.cq).status == IBV_WC_SUCCESS, "bit %d", bit);
        bind = (struct ibv_mw_bind){.send_flags = 1u << bit, .bind_info = info};
        bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
        IS(EINVAL, ibv_bind_mw(qp, one, &bind));
        wr = (struct ibv_send_wr){.opcode = IBV_WR_BIND_MW};
        wr.bind_mw.mw = two;
        wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
        wr.bind_mw.bind_info = info;
        if (!window)
            IS(EINVAL, ibv_post_send(qp, &wr, &bad));
    }
    IS(0, ibv_dealloc_mw(one));
    IS(0, ibv_dealloc_mw(two));
    NONE(EINVAL, ibv_alloc_mw(end.pd, 3));
    strcpy(doing, "masks and flags of ibv_modify_qp");
    for (int bit = 21; bit < 32; bit++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
        int result = ibv_modify_qp(qp, &attr, (int)(IBV_QP_STATE | 1u << bit));
        NEED(result == EINVAL || result == EOPNOTSUPP, "bit %d gives %d", bit, result);
    }
    for (int bit = 0; bit < 32; bit++) {
        struct ibv_qp_attr attr = {.qp_access_flags = 1u << bit};
        bool known = bit < 10 || (bit >= 20 && bit < 30);
        IS(known ? 0 : EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS));
    }
    IS(0, ibv_destroy_qp(qp));
}

static void bits_of_objects(void)
{
    strcpy(doing, "masks of what is made");
    struct ibv_qp_init_attr_ex qp = {
        .send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC, .pd = end.pd,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    for (int bit = 3; bit < 32; bit++) {
        qp.comp_mask = IBV_QP_INIT_ATTR_PD | 1u << bit;
        if (bit != 6)
            NONE(EOPNOTSUPP, ibv_create_qp_ex(end.context, &qp));
    }
    qp.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    for (int bit = 0; bit < 32; bit++) {
        qp.create_flags = 1u << bit;
        if (qp.create_flags != IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)
            NONE(EOPNOTSUPP, ibv_create_qp_ex(end.context, &qp));
    }
    qp.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    for (int bit = 10; bit < 64; bit++) {
        qp.send_ops_flags = 1ull << bit;
        NONE(EOPNOTSUPP, ibv_create_qp_ex(end.context, &qp));
    }
    struct ibv_cq_init_attr_ex cq = {.cqe = 4};
    for (int bit = 2; bit < 32; bit++) {
        cq.comp_mask = 1u << bit;
        NONE(EOPNOTSUPP, ibv_create_cq_ex(end.context, &cq));
    }
    cq.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    for (int bit = 1; bit < 32; bit++) {
        cq.flags = 1u << bit;
        NONE(EOPNOTSUPP, ibv_create_cq_ex(end.context, &cq));
    }
    cq.comp_mask = 0;
    for (int bit = 12; bit < 64; bit++) {
        cq.wc_flags = 1ull << bit;
        errno = 0;
        NEED(!ibv_create_cq_ex(end.context, &cq) && errno, "wc_flags bit %d", bit);
    }
    cq.wc_flags = IBV_WC_EX_WITH_BYTE_LEN;
    struct ibv_cq_ex *made = ibv_create_cq_ex(end.context, &cq);
    NEED(made, "ibv_create_cq_ex");
    struct ibv_poll_cq_attr poll = {.comp_mask = 1};
    IS(EINVAL, ibv_start_poll(made, &poll));
    for (int bit = 1; bit < 32; bit++) {
        struct ibv_modify_cq_attr moderation = {.attr_mask = IBV_CQ_ATTR_MODERATE | 1u << bit};
        IS(EINVAL, ibv_modify_cq(ibv_cq_ex_to_cq(made), &moderation));
    }
    IS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(made)));
    struct ibv_srq_init_attr_ex srq = {.attr = {.max_wr = 1, .max_sge = 1}, .pd = end.pd};
    for (int bit = 4; bit < 32; bit++) {
        srq.comp_mask = IBV_SRQ_INIT_ATTR_PD | 1u << bit;
        NONE(EOPNOTSUPP, ibv_create_srq_ex(end.context, &srq));
    }
    srq.comp_mask = IBV_SRQ_INIT_ATTR_PD;
    struct ibv_srq *queue = ibv_create_srq_ex(end.context, &srq);
    NEED(queue, "ibv_create_srq_ex");
    for (int bit = 2; bit < 32; bit++) {
        struct ibv_srq_attr attr = {.max_wr = 2};
        IS(EINVAL, ibv_modify_srq(queue, &attr, (int)(IBV_SRQ_MAX_WR | 1u << bit)));
    }
    IS(0, ibv_destroy_srq(queue));
    for (int bit = 0; bit < 32; bit++) {
        struct ibv_td_init_attr td = {.comp_mask = 1u << bit};
        NONE(EINVAL, ibv_alloc_td(end.context, &td));
        struct ibv_parent_domain_init_attr parent = {.pd = end.pd, .comp_mask = 1u << bit};
        if (parent.comp_mask != IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
            NONE(EOPNOTSUPP, ibv_alloc_parent_domain(end.context, &parent));
        struct ibv_xrcd_init_attr xrcd = {
            .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
        xrcd.comp_mask ^= 1u << bit;
        NONE(EINVAL, ibv_open_xrcd(end.context, &xrcd));
        struct ibv_query_device_ex_input input = {.comp_mask = 1u << bit};
        struct ibv_device_attr_ex attr;
        IS(EINVAL, ibv_query_device_ex(end.context, &input, &attr));
        struct ibv_values_ex values = {.comp_mask = 1u << bit};
        if (values.comp_mask != IBV_VALUES_MASK_RAW_CLOCK)
            IS(EINVAL, ibv_query_rt_values_ex(end.context, &values));
        struct ibv_gid_entry entry;
        IS(EOPNOTSUPP, ibv_query_gid_ex(end.context, 1, 0, &entry, 1u << bit));
    }
}

int main(void)
{
    open_end(&end);
    NEED(posix_memalign((void **)&memory, 4096, 4096) == 0, "posix_memalign");
    memset(memory, 1, 4096);
    mr = ibv_reg_mr(end.pd, memory, 4096, ALL_ACCESS);
    NEED(mr, "ibv_reg_mr");
    states();
    lists();
    queues();
    bits_of_regions();
    bits_of_requests();
    bits_of_objects();
    IS(0, ibv_dereg_mr(mr));
    printf("done\n");
    return 0;
}
