// C streams over a connection, which reach the kernel without any interposed call; dprintf.
//: lane required
#include "common.h"

int main(void)
{
    struct pair p = pair_open();
    char line[8192], in[64];

    /* Bytes of plain calls and of streams, alternately in one connection. */
    FILE *writer = fdopen(dup(p.a), "w"), *reader = fdopen(dup(p.b), "r");
    if (!writer || !reader)
        die("fdopen");
    SHOW(write(p.a, "plain first\n", 12));
    SHOW(fprintf(writer, "formatted %d %s\n", 42, "text"));
    SHOW(fflush(writer));
    SHOW(write(p.a, "plain again\n", 12));
    SHOW(dprintf(p.a, "dprintf %x\n", 48879));
    for (int i = 0; i < 4; i++)
        say("%s", fgets(line, sizeof line, reader) ? line : "(nothing)\n");
    SHOW(fputs("a line for read\n", writer) >= 0);
    SHOW(fflush(writer));
    SHOW(read(p.b, in, 16));
    say("%.16s", in);
    warm(p.a, p.b);

    /* Larger than stdio's buffer, in both directions. */
    FILE *answer = fdopen(dup(p.b), "w"), *listen_to = fdopen(dup(p.a), "r");
    for (int i = 0; i < 100; i++) {
        memset(line, 'a' + i % 26, sizeof line);
        if (fwrite(line, 1, sizeof line, answer) != sizeof line || fflush(answer) != 0)
            die("fwrite");
        char got[sizeof line];
        if (fread(got, 1, sizeof got, listen_to) != sizeof got)
            die("fread");
        if (memcmp(got, line, sizeof got) != 0)
            say("round %d: bytes differ\n", i);
    }
    SHOW(write(p.a, "mixed ", 6));
    SHOW(fputs("with a stream\n", writer) >= 0);
    SHOW(fclose(writer));
    say("%s", fgets(line, sizeof line, reader) ? line : "(nothing)\n");
    SHOW(fclose(listen_to));
    SHOW(close(p.a));
    SHOW(fgetc(reader));
    SHOW(feof(reader) != 0);
    SHOW(fclose(reader));
    SHOW(fclose(answer));
    SHOW(close(p.b));

    say("-- a stream opened before any byte went\n");
    p = pair_cold();
    writer = fdopen(p.a, "r+");
    reader = fdopen(p.b, "r+");
    setvbuf(writer, NULL, _IOLBF, 0);
    for (int i = 0; i < 300; i++) {
        fprintf(writer, "request %d\n", i);
        fflush(writer);
        if (!fgets(line, sizeof line, reader))
            die("fgets");
        fseek(reader, 0, SEEK_CUR);
        fprintf(reader, "answer to %s", line);
        fflush(reader);
        if (!fgets(line, sizeof line, writer))
            die("fgets");
        fseek(writer, 0, SEEK_CUR);
    }
    say("%s", line);
    SHOW(fclose(writer));
    SHOW(fclose(reader));
    return 0;
}
