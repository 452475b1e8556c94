/*
 * Questions that no program of the suites asks: tables, indexes, what the header computes, and
 * queue pairs that are opened a second time.
 */
#include "ends.h"

/* Public symbols of the library that no public header has. */
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static struct end end;

static void tables(void)
{
    strcpy(doing, "the GID table");
    struct ibv_port_attr port;
    NEED(ibv_query_port(end.context, 1, &port) == 0, "ibv_query_port");
    enum { MAX = 1024 };
    static struct ibv_gid_entry entries[MAX];
    NEED(port.gid_tbl_len > 0 && port.gid_tbl_len <= MAX, "%d entries", port.gid_tbl_len);
    ssize_t count = ibv_query_gid_table(end.context, entries, MAX, 0);
    NEED(count > 0, "%zd entries", count);
    ssize_t valid = 0;
    for (int index = 0; index < port.gid_tbl_len; index++) {
        union ibv_gid gid, none = {0};
        NEED(ibv_query_gid(end.context, 1, index, &gid) == 0, "ibv_query_gid");
        struct ibv_gid_entry entry;
        int found = ibv_query_gid_ex(end.context, 1, (uint32_t)index, &entry, 0);
        if (memcmp(&gid, &none, sizeof gid) == 0) {
            NEED(found == ENODATA, "an empty entry gives %d", found);
            continue;
        }
        NEED(found == 0, "ibv_query_gid_ex gives %d", found);
        NEED(valid < count && memcmp(&entry, &entries[valid], sizeof entry) == 0,
             "the table has another entry for %d", index);
        NEED(entry.gid_index == (uint32_t)index && entry.port_num == 1 &&
                 entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
                 memcmp(&entry.gid, &gid, sizeof gid) == 0,
             "entry %d", index);
        valid++;
    }
    NEED(valid == count, "%zd entries in the table, %zd one by one", count, valid);
    NEED(ibv_query_gid_table(end.context, entries, (size_t)count - 1, 0) == -EINVAL, "no room");
    NEED(ibv_query_gid_table(end.context, entries, MAX, 1) == -EOPNOTSUPP, "an unknown flag");
    NEED(ibv_query_gid_ex(end.context, 2, 0, entries, 0) == EINVAL, "a port too many");

    strcpy(doing, "the P_Key table");
    __be16 pkey;
    NEED(ibv_query_pkey(end.context, 1, 0, &pkey) == 0 && pkey == 0xffff, "P_Key %x", pkey);
    NEED(ibv_get_pkey_index(end.context, 1, pkey) == 0, "its index");
    NEED(ibv_get_pkey_index(end.context, 1, 0x1234) == -1, "the index of no P_Key");
    NEED(ibv_get_pkey_index(end.context, 2, pkey) == -1, "a port too many");
}

static void names(void)
{
    strcpy(doing, "the device's index");
    /* There is no kernel device, so that there is no index of one. */
    NEED(ibv_get_device_index(end.context->device) == -1, "an index");

    strcpy(doing, "sysfs");
    struct ibv_device *device = end.context->device;
    const char *path = ibv_get_sysfs_path();
    NEED(path && access(path, X_OK) == 0, "%s", path);
    char text[64];
    memset(text, 'x', sizeof text);
    int length = ibv_read_sysfs_file(path, "kernel/mm/transparent_hugepage/enabled", text,
                                     sizeof text);
    if (length < 0) /* Not every kernel has it; every one has this. */
        length = ibv_read_sysfs_file("/proc", "sys/kernel/ostype", text, sizeof text);
    NEED(length > 0 && text[length] == 0 && text[length - 1] != '\n', "%d bytes", length);
    NEED(ibv_read_sysfs_file(path, "no such file", text, sizeof text) == -1 && errno == ENOENT,
         "a file that is not there");
    NEED(ibv_read_sysfs_file(device->ibdev_path, "node_guid", text, sizeof text) == -1,
         "a file of a device that the kernel does not know");

    strcpy(doing, "what the header computes");
    struct ibv_device_attr_ex attr;
    NEED(ibv_query_device_ex(end.context, NULL, &attr) == 0, "ibv_query_device_ex");
    NEED(ibv_is_qpt_supported(attr.rss_caps.supported_qpts, IBV_QPT_RC) == 0, "RSS");
    NEED(ibv_is_qpt_supported(attr.tso_caps.supported_qpts, IBV_QPT_UD) == 0, "TSO");
    NEED(ibv_flow_label_to_udp_sport(0x12345) >= 0xc000, "a port below the range");
}

static void order(void)
{
    strcpy(doing, "the order of data");
    struct ibv_qp *qp = make_qp(&end, IBV_QPT_RC, NULL);
    static const enum ibv_wr_opcode OPCODES[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                                 IBV_WR_SEND};
    for (size_t i = 0; i < sizeof OPCODES / sizeof OPCODES[0]; i++)
        NEED(ibv_query_qp_data_in_order(qp, OPCODES[i], 0) == 0, "it is promised");
    NEED(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
}

/* An XRC target belongs to its domain: whoever has the domain can open it by its number. */
static void opened_twice(void)
{
    strcpy(doing, "ibv_open_qp");
    struct ibv_xrcd_init_attr domain = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
        .oflags = O_CREAT};
    struct ibv_xrcd *xrcd = ibv_open_xrcd(end.context, &domain);
    struct ibv_xrcd *other = ibv_open_xrcd(end.context, &domain);
    NEED(xrcd && other, "ibv_open_xrcd");
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
    struct ibv_qp *target = ibv_create_qp_ex(end.context, &init);
    NEED(target, "ibv_create_qp_ex");
    int word = 0;
    struct ibv_qp_open_attr attr = {
        .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE |
                     IBV_QP_OPEN_ATTR_CONTEXT,
        .qp_num = target->qp_num, .xrcd = xrcd, .qp_context = &word,
        .qp_type = IBV_QPT_XRC_RECV};
    struct ibv_qp *second = ibv_open_qp(end.context, &attr);
    NEED(second && second != target, "ibv_open_qp");
    NEED(second->qp_num == target->qp_num && second->qp_context == &word &&
             second->qp_type == IBV_QPT_XRC_RECV, "another queue pair");
    /* What one changes the other sees. */
    NEED(to_init(second, IBV_ACCESS_REMOTE_WRITE) == 0, "to INIT");
    await_state(target, IBV_QPS_INIT);
    NEED(ibv_destroy_qp(second) == 0, "closing it");
    await_state(target, IBV_QPS_INIT);
    attr.xrcd = other;
    NEED(!ibv_open_qp(end.context, &attr) && errno, "by another domain");
    attr.xrcd = xrcd;
    attr.qp_num ^= 1;
    NEED(!ibv_open_qp(end.context, &attr) && errno, "by a number of nobody");
    attr.qp_num ^= 1;
    attr.qp_type = IBV_QPT_RC;
    NEED(!ibv_open_qp(end.context, &attr) && errno == EINVAL, "of another type");
    attr.qp_type = IBV_QPT_XRC_RECV;
    attr.comp_mask &= ~(uint32_t)IBV_QP_OPEN_ATTR_NUM;
    NEED(!ibv_open_qp(end.context, &attr) && errno == EINVAL, "without a number");
    attr.comp_mask |= IBV_QP_OPEN_ATTR_NUM | 1 << 4;
    NEED(!ibv_open_qp(end.context, &attr) && errno == EINVAL, "an unknown mask");
    attr.comp_mask &= ~(1u << 4);
    NEED(ibv_close_xrcd(xrcd) == EBUSY, "the domain is in use");
    NEED(ibv_destroy_qp(target) == 0, "ibv_destroy_qp");
    NEED(!ibv_open_qp(end.context, &attr) && errno, "one that is gone");
    NEED(ibv_close_xrcd(xrcd) == 0 && ibv_close_xrcd(other) == 0, "ibv_close_xrcd");
}

int main(void)
{
    open_end(&end);
    tables();
    names();
    order();
    opened_twice();
    printf("done\n");
    return 0;
}
