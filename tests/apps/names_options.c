// Names and socket options of a used connection, and options that must keep working on it.
//: lane required
#include "common.h"

static struct pair p;

static void show_option(const char *name, int fd, int level, int option)
{
    int value = -1;
    socklen_t len = sizeof value;
    if (getsockopt(fd, level, option, &value, &len) < 0)
        say("%s: %s\n", name, error_name(errno));
    else
        say("%s: %d (%u bytes)\n", name, value, len);
}
#define GET(level, option) show_option(#option, p.b, level, option)
#define SET(level, option, value)                                                                  \
    do {                                                                                           \
        int value_ = (value);                                                                      \
        SHOW(setsockopt(p.b, level, option, &value_, sizeof value_));                              \
        GET(level, option);                                                                        \
    } while (0)

static void show_names(void)
{
    struct sockaddr_storage own, peer;
    for (int side = 0; side < 2; side++) {
        socklen_t own_len = sizeof own, peer_len = sizeof peer;
        int one = side ? p.b : p.a, other = side ? p.a : p.b;
        SHOW(getsockname(one, (struct sockaddr *)&own, &own_len));
        SHOW(getpeername(other, (struct sockaddr *)&peer, &peer_len));
        say("lengths %u %u, same %d, family %d\n", own_len, peer_len,
            own_len == peer_len && memcmp(&own, &peer, own_len) == 0, own.ss_family);
    }
    socklen_t two = 2;
    SHOW(getsockname(p.a, (struct sockaddr *)&own, &two));
    say("length %u\n", two);
}

int main(void)
{
    p = pair_open();
    show_names();
    GET(SOL_SOCKET, SO_ERROR);
    GET(SOL_SOCKET, SO_TYPE);
    GET(SOL_SOCKET, SO_DOMAIN);
    GET(SOL_SOCKET, SO_PROTOCOL);
    GET(SOL_SOCKET, SO_ACCEPTCONN);
    SET(SOL_SOCKET, SO_KEEPALIVE, 1);
    SET(SOL_SOCKET, SO_REUSEADDR, 1);
    SET(SOL_SOCKET, SO_OOBINLINE, 0);
    SET(SOL_SOCKET, SO_PRIORITY, 3);
    SET(SOL_SOCKET, SO_RCVBUF, 100000);
    SET(SOL_SOCKET, SO_SNDBUF, 100000);
    SET(SOL_SOCKET, SO_BUSY_POLL, 0);
    SET(IPPROTO_TCP, TCP_NODELAY, 0);
    SET(IPPROTO_TCP, TCP_NODELAY, 1);
    SET(IPPROTO_TCP, TCP_KEEPIDLE, 60);
    SET(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
    SET(IPPROTO_TCP, TCP_QUICKACK, 1);
    SET(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384);
    SET(IPPROTO_TCP, TCP_LINGER2, 5);
    SET(IPPROTO_TCP, 9999, 1);
    SET(SOL_SOCKET, 9999, 1);

    struct tcp_info info;
    socklen_t len = sizeof info;
    SHOW(getsockopt(p.b, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("state %d\n", info.tcpi_state);
    char name[16] = "", congestion[16] = "";
    len = sizeof congestion;
    SHOW(getsockopt(p.b, IPPROTO_TCP, TCP_CONGESTION, congestion, &len));
    len = sizeof name;
    SHOW(getsockopt(p.b, IPPROTO_TCP, TCP_ULP, name, &len));
    SHOW(setsockopt(p.b, IPPROTO_TCP, TCP_ULP, "nonesuch", 8));
    /* Kernels with kTLS accept it, others say ENOENT; nobody changes the stream here. */
    SHOW(setsockopt(p.b, IPPROTO_TCP, TCP_ULP, "tls", 3));

    char in[4096], out[2048];
    fill(out, sizeof out, 10);
    warm(p.a, p.b);
    say("-- corked bytes arrive when uncorked\n");
    SET(IPPROTO_TCP, TCP_CORK, 1);
    SHOW(write(p.b, out, 10));
    SHOW(write(p.b, out + 10, 10));
    SET(IPPROTO_TCP, TCP_CORK, 0);
    await_pending(p.a, 20);
    SHOW(read(p.a, in, sizeof in));
    SET(IPPROTO_TCP, TCP_CORK, 1);
    SHOW(write(p.b, out, 10));
    SHOW(shutdown(p.b, SHUT_WR));
    read_exact(p.a, in, 10);
    SHOW(read(p.a, in, sizeof in));
    pair_close(p);
    show_option("SO_TYPE of a closed one", p.b, SOL_SOCKET, SO_TYPE);

    /* After the peer went there is no peer name any more. */
    p = pair_open();
    struct linger at_once = {1, 0};
    NEED(setsockopt(p.a, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    NEED(close(p.a));
    await_events(p.b, POLLHUP);
    struct sockaddr_storage peer;
    len = sizeof peer;
    SHOW(getpeername(p.b, (struct sockaddr *)&peer, &len));
    GET(SOL_SOCKET, SO_ERROR);
    len = sizeof info;
    SHOW(getsockopt(p.b, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("state %d\n", info.tcpi_state);
    close(p.b);
    return 0;
}
