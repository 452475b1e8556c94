/*
 * Connects to ADDRESS PORT, says hello, and prints the answer and what it takes for the two ends.
 * Linked statically, so that no library can be loaded into it.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int (*name_call)(int, struct sockaddr *, socklen_t *);

static void print_end(int socket, name_call ask)
{
	struct sockaddr_storage storage;
	socklen_t length = sizeof(storage);
	char text[INET6_ADDRSTRLEN];

	if (ask(socket, (struct sockaddr *)&storage, &length)) {
		perror("a name");
		exit(1);
	}
	if (storage.ss_family == AF_INET) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)&storage;

		inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
		printf("%s:%d\n", text, ntohs(v4->sin_port));
	} else {
		struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&storage;

		inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
		printf("[%s]:%d\n", text, ntohs(v6->sin6_port));
	}
}

int main(int count, char **arguments)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	struct sockaddr *to = (struct sockaddr *)&v4;
	socklen_t length = sizeof(v4);
	char answer[64];
	ssize_t got;
	int end;

	if (count != 3)
		return 2;
	v4.sin_port = v6.sin6_port = htons(atoi(arguments[2]));
	if (inet_pton(AF_INET, arguments[1], &v4.sin_addr) != 1) {
		if (inet_pton(AF_INET6, arguments[1], &v6.sin6_addr) != 1)
			return 2;
		to = (struct sockaddr *)&v6;
		length = sizeof(v6);
	}
	end = socket(to->sa_family, SOCK_STREAM, 0);
	if (end < 0 || connect(end, to, length)) {
		perror("connect");
		return 1;
	}
	if (write(end, "hello\n", 6) != 6)
		return 1;
	got = read(end, answer, sizeof(answer));
	if (got <= 0)
		return 1;
	fwrite(answer, 1, got, stdout);
	print_end(end, getpeername);
	print_end(end, getsockname);
	return 0;
}
