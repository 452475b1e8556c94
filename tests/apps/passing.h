/*
 * One descriptor in a message of a Unix socket (SCM_RIGHTS).
 */
#ifndef SLUICE_APPS_PASSING_H
#define SLUICE_APPS_PASSING_H

#include "common.h"

union one_fd {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

UNUSED static void send_fd(int channel, int fd)
{
    union one_fd control;
    memset(&control, 0, sizeof control);
    struct iovec part = {"f", 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    NEED(sendmsg(channel, &message, 0));
}

UNUSED static int receive_fd(int channel)
{
    union one_fd control;
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    NEED(recvmsg(channel, &message, 0));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS)
        die("no descriptor came");
    int fd;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

#endif
