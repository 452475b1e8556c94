/*
 * A program that closes all its descriptors from 3 on, as daemons do, after it has allocated memory in whole pages: files
 * of its own that get their numbers are left alone, and children have its memory.
 */
#include "ends.h"

#define BYTES (1u << 20)

static uint8_t *memory;
static char path[] = "/tmp/sluice-closes-XXXXXX";

static uint8_t *pages(void)
{
    uint8_t *made = aligned_alloc(4096, BYTES);
    NEED(made, "aligned_alloc");
    memset(made, 'P', BYTES);
    return made;
}

/* A file that has the lowest number which is free. */
static int fill(uint8_t byte)
{
    static uint8_t data[BYTES];
    memset(data, byte, sizeof data);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    NEED(file >= 0 && write(file, data, BYTES) == BYTES, "a file");
    return file;
}

static void need_whole(uint8_t byte)
{
    static uint8_t data[BYTES];
    int file = open(path, O_RDONLY);
    NEED(file >= 0 && read(file, data, BYTES) == BYTES, "the file is shorter");
    for (size_t i = 0; i < BYTES; i++)
        NEED(data[i] == byte, "byte %zu of the file has changed", i);
    close(file);
}

static void need_child(int file)
{
    pid_t child = fork();
    NEED(child >= 0, "fork");
    if (child == 0) {
        bool same = file < 0 || fcntl(file, F_GETFD) >= 0;
        for (size_t i = 0; i < BYTES; i++)
            same = same && memory[i] == 'P';
        memset(memory, 'C', BYTES);
        _exit(!same);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child, "waitpid");
    NEED(WIFEXITED(status), "the child was killed by signal %d", WTERMSIG(status));
    NEED(WEXITSTATUS(status) == 0, "the child has other memory, or lacks the file");
    NEED(memory[0] == 'P' && memory[BYTES - 1] == 'P', "the child wrote to its parent's memory");
}

int main(void)
{
    NEED(close(mkstemp(path)) == 0, "mkstemp");
    memory = pages();
    snprintf(doing, sizeof doing, "closed before a device is open");
    closefrom(3);
    need_child(-1);
    int file = fill('D');
    need_child(file);
    free(memory);
    need_whole('D');
    NEED(close(file) == 0, "close");

    /* What was allocated before is still memory, and a device can be used. */
    snprintf(doing, sizeof doing, "closed while a device is open");
    memory = pages();
    struct end end;
    open_end(&end);
    struct ibv_mr *mr = ibv_reg_mr(end.pd, memory, BYTES, ALL_ACCESS);
    NEED(mr, "ibv_reg_mr");
    closefrom(3);
    /* Files with all the numbers that there can have been. */
    file = fill('E');
    for (int i = 0; i < 64; i++)
        NEED(dup(file) >= 0, "dup");
    need_child(file + 8);
    NEED(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    free(memory);
    need_whole('E');
    NEED(unlink(path) == 0, "unlink");
    printf("nothing was changed\n");
    return 0;
}
