/*
 * The files of a device that programs look for before they use it (UCX, Open MPI, Mooncake), by each function of the C
 * library that they have for it; and a program's own files, which stay what they are.
 */
#include "ends.h"
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static void node(const char *path)
{
    struct stat found;
    struct statx extended;
    snprintf(doing, sizeof doing, "%.150s", path);
    NEED(stat(path, &found) == 0 && S_ISCHR(found.st_mode), "stat");
    NEED(lstat(path, &found) == 0 && S_ISCHR(found.st_mode), "lstat");
    NEED(fstatat(AT_FDCWD, path, &found, 0) == 0 && S_ISCHR(found.st_mode), "fstatat");
    NEED(statx(AT_FDCWD, path, 0, STATX_TYPE, &extended) == 0 && S_ISCHR(extended.stx_mode),
         "statx");
    NEED(access(path, R_OK | W_OK) == 0, "access");
    NEED(faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) == 0, "faccessat");
    int file = open(path, O_RDWR | O_CLOEXEC);
    NEED(file >= 0 && close(file) == 0, "open");
    file = openat(AT_FDCWD, path, O_RDWR);
    NEED(file >= 0 && close(file) == 0, "openat");
    FILE *stream = fopen(path, "r+");
    NEED(stream && fclose(stream) == 0, "fopen");
}

static void leads_to(const char *path, const char *wanted)
{
    char room[PATH_MAX];
    struct stat found;
    snprintf(doing, sizeof doing, "%.150s", path);
    NEED(stat(path, &found) == 0 && S_ISDIR(found.st_mode), "stat");
    NEED(access(path, R_OK | X_OK) == 0, "access");
    NEED(realpath(path, room) == room && strcmp(room, wanted) == 0, "realpath: %s", room);
    char *allocated = realpath(path, NULL);
    NEED(allocated && strcmp(allocated, wanted) == 0, "realpath: %s", allocated);
    free(allocated);
}

int main(void)
{
    char path[PATH_MAX];
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0], "no device");
    snprintf(path, sizeof path, "/dev/infiniband/%s", list[0]->dev_name);
    node(path);
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/../..", list[0]->name);
    leads_to(path, "/sys/devices/virtual");
    leads_to(list[0]->ibdev_path, "/sys/devices/virtual/infiniband/sluice0");
    leads_to("/sys/class/infiniband", "/sys/class/infiniband");

    char own[] = "/tmp/sluice-files-XXXXXX";
    int file = mkstemp(own);
    snprintf(doing, sizeof doing, "%s", own);
    struct stat by_path, by_number;
    NEED(file >= 0 && fstat(file, &by_number) == 0 && stat(own, &by_path) == 0, "stat");
    NEED(by_path.st_ino == by_number.st_ino && by_path.st_dev == by_number.st_dev, "another file");
    NEED(unlink(own) == 0 && access(own, F_OK) == -1 && errno == ENOENT, "access");
    int made = open(own, O_RDWR | O_CREAT | O_EXCL, 0640);
    NEED(made >= 0 && fstat(made, &by_number) == 0, "open");
    NEED((by_number.st_mode & 0777) == 0640, "the mode is %o", by_number.st_mode);
    NEED(unlink(own) == 0, "unlink");
    NEED(open("/dev/infiniband/no_such_device", O_RDWR) == -1 && errno == ENOENT, "open");
    printf("files of %s\n", list[0]->name);
    return 0;
}
