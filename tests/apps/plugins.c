// Code that finds the C library's functions by itself (plugins with RTLD_DEEPBIND, a handle of the C library, another
// namespace of the dynamic linker) uses connections that the program uses too.
//: lane required
//: plugin
#include "common.h"

#include <dlfcn.h>

#ifdef PLUGIN

ssize_t plugin_send(int fd, const char *text)
{
    return send(fd, text, strlen(text), 0);
}

ssize_t plugin_recv(int fd, char *to, size_t room)
{
    return recv(fd, to, room, 0);
}

/* A table of functions, as many plugins have: their addresses are filled in when the plugin is loaded. */
const struct {
    ssize_t (*write)(int, const void *, size_t);
    ssize_t (*read)(int, void *, size_t);
} plugin_table = {write, read};

#else

typedef ssize_t send_function(int, const char *);
typedef ssize_t recv_function(int, char *, size_t);
typedef ssize_t write_function(int, const void *, size_t);
typedef ssize_t read_function(int, void *, size_t);

struct table {
    write_function *write;
    read_function *read;
};

struct plugin {
    void *handle;
    send_function *send;
    recv_function *recv;
    const struct table *table;
};

static struct plugin find(void *handle)
{
    if (!handle)
        die(dlerror());
    struct plugin found = {handle, (send_function *)dlsym(handle, "plugin_send"),
                           (recv_function *)dlsym(handle, "plugin_recv"), dlsym(handle, "plugin_table")};
    if (!found.send || !found.recv || !found.table)
        die("a function of the plugin is missing");
    return found;
}

/* Each pair of a writer and a reader, one of which is the program's. */
static void rounds(struct pair p, struct plugin plugin)
{
    char in[64];
    unsigned right = 0;
    for (int i = 0; i < 400; i++) {
        char text[32];
        int len = snprintf(text, sizeof text, "round %d of many", i);
        if (i % 4 == 0)
            NEED(plugin.send(p.a, text));
        else if (i % 4 == 1)
            NEED(plugin.table->write(p.a, text, (size_t)len));
        else
            write_all(p.a, text, (size_t)len);
        ssize_t n = 0;
        while (n < len) {
            ssize_t piece = i % 3 == 0   ? plugin.recv(p.b, in + n, sizeof in - (size_t)n)
                            : i % 3 == 1 ? plugin.table->read(p.b, in + n, sizeof in - (size_t)n)
                                         : read(p.b, in + n, sizeof in - (size_t)n);
            n += NEED(piece);
        }
        right += n == len && memcmp(in, text, (size_t)len) == 0;
        int other = p.a;
        p.a = p.b;
        p.b = other;
    }
    say("%u right\n", right);
}

int main(int argc, char **argv)
{
    (void)argc;
    char path[PATH_MAX], *name;
    snprintf(path, sizeof path, "%s.so", realpath(argv[0], NULL));
    name = strrchr(path, '/') + 1;
    struct pair p = pair_open();

    say("by its path\n");
    struct plugin plugin = find(dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND));
    rounds(p, plugin);
    dlclose(plugin.handle);

    say("by its name, which is found where the program says, and at first use\n");
    plugin = find(dlopen(name, RTLD_LAZY | RTLD_DEEPBIND));
    rounds(p, plugin);
    dlclose(plugin.handle);

    say("without RTLD_DEEPBIND\n");
    plugin = find(dlopen(name, RTLD_LAZY));
    rounds(p, plugin);
    dlclose(plugin.handle);

    say("missing: %s", dlopen("./none.so", RTLD_NOW | RTLD_DEEPBIND) ? "no" : "");
    say("%s\n", dlerror());
    say("missing: %s", dlopen("none-of-these.so", RTLD_NOW | RTLD_DEEPBIND) ? "no" : "");
    say("%s\n", dlerror());

    say("by a handle of the C library\n");
    void *c = dlopen("libc.so.6", RTLD_NOW);
    struct table table = {(write_function *)dlsym(c, "write"), (read_function *)dlsym(c, "read")};
    plugin = find(dlopen(path, RTLD_NOW));
    plugin.table = &table;
    rounds(p, plugin);
    say("%p %p %s\n", dlsym(c, "no_such_function"), dlsym(RTLD_DEFAULT, "no_such_function"), dlerror() ? "said" : "");
    say("%d\n", dlsym(RTLD_NEXT, "strlen") != NULL);

    say("unread bytes, and another namespace\n");
    write_all(p.a, "unread", 6);
    await_pending(p.b, 6);
    plugin = find(dlmopen(LM_ID_NEWLM, path, RTLD_NOW));
    char in[64];
    ssize_t n = NEED(plugin.recv(p.b, in, sizeof in));
    say("%.*s\n", (int)n, in);
    rounds(p, plugin);
    pair_close(p);
    return 0;
}

#endif
