// MSG_WAITALL and MSG_PEEK that must wait for an other end which sends in pieces.
//: lane required
//: ends thread fork exec
#include "common.h"

static void client(int fd)
{
    char data[5000];
    fill(data, sizeof data, 7);
    for (int i = 0; i < 5; i++) {
        nap_ms(5);
        write_all(fd, data + i * 1000, 1000);
    }
    meet();
    nap_ms(20);
    write_all(fd, data, 10);
    meet();
    nap_ms(20);
    write_all(fd, data, 300);
    close(fd);
}

static void server(int fd)
{
    char data[6000], want[5000];
    fill(want, sizeof want, 7);
    SHOW(recv(fd, data, 5000, MSG_WAITALL));
    say("same bytes: %d\n", memcmp(data, want, 5000) == 0);
    meet();
    SHOW(recv(fd, data, 100, MSG_PEEK));
    SHOW(recv(fd, data, 100, 0));
    meet();
    SHOW(recv(fd, data, 1000, MSG_WAITALL));
    SHOW(recv(fd, data, 1000, MSG_WAITALL));
    close(fd);
}

TWO_ENDS(client, server)
