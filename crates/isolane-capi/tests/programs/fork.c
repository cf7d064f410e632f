/*
 * A forked child: it cannot use the session of its parent, does not harm that session, and can open another.
 *
 *     fork ENGINE-SOCKET
 */
#define _GNU_SOURCE

#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Objects of the parent. */
struct inherited {
	isolane_session *session;
	isolane_poller *poller;
	/* Through the engine, with a poller, and without an engine. */
	isolane_stream *stream, *polled, *plain;
};

static int listener(struct sockaddr_in *address)
{
	socklen_t length = sizeof *address;
	int listening = socket(AF_INET, SOCK_STREAM, 0);
	*address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	CHECK(bind(listening, (struct sockaddr *)address, length) == 0 && listen(listening, 1) == 0);
	CHECK(getsockname(listening, (struct sockaddr *)address, &length) == 0);
	return listening;
}

/* Returns one end of a connection; the other is `*far`. */
static int pair(int *far)
{
	struct sockaddr_in address;
	int listening = listener(&address), near = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(near, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK((*far = accept(listening, NULL, NULL)) >= 0);
	close(listening);
	return near;
}

/* A stream without an engine: its rings would not fit into the session's memory. */
static isolane_stream *plain(isolane_session *session, int *far)
{
	char name[32];
	struct sockaddr_in address;
	int listening = listener(&address);
	isolane_stream *stream;
	isolane_options *options = isolane_options_new();
	CHECK(isolane_options_set(options, ISOLANE_RX_BYTES, 64 << 20) == 0);
	snprintf(name, sizeof name, "127.0.0.1:%d", ntohs(address.sin_port));
	stream = isolane_stream_connect(session, name, options);
	CHECK(stream != NULL);
	CHECK((*far = accept(listening, NULL, NULL)) >= 0);
	isolane_options_free(options);
	close(listening);
	return stream;
}

static void echo(isolane_stream *stream, int far)
{
	char bytes[3];
	CHECK(isolane_stream_write(stream, "abc", 3) == 3);
	CHECK(recv(far, bytes, 3, MSG_WAITALL) == 3 && memcmp(bytes, "abc", 3) == 0);
	CHECK(send(far, "d", 1, 0) == 1);
	CHECK(isolane_stream_read(stream, bytes, 1) == 1 && bytes[0] == 'd');
}

/* Address of the memory of the only session; a child does not inherit the mapping. */
static char *memory_of_session(size_t *bytes)
{
	char line[4096];
	unsigned long start = 0, end = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps != NULL);
	while (start == 0 && fgets(line, sizeof line, maps) != NULL)
		if (strstr(line, "isolane-session") != NULL)
			CHECK(sscanf(line, "%lx-%lx", &start, &end) == 2);
	fclose(maps);
	CHECK(start != 0);
	*bytes = end - start;
	return (char *)start;
}

/* Closing an inherited session does not unmap memory that the child mapped at its address. */
static void reuse_addresses(isolane_session *inherited, char *start, size_t bytes)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	CHECK(mmap(start, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == start);
	memset(start, 7, bytes);
	isolane_session_close(inherited);
	CHECK(start[0] == 7 && start[bytes - 1] == 7);
	CHECK(munmap(start, bytes) == 0);
}

static void refuse_stream(isolane_stream *stream)
{
	char byte = 0;
	CHECK_MINUS(isolane_stream_write(stream, "x", 1), ECONNABORTED, "forked");
	CHECK_MINUS(isolane_stream_try_write(stream, "x", 1), ECONNABORTED, "forked");
	CHECK_MINUS(isolane_stream_read(stream, &byte, 1), ECONNABORTED, "forked");
	CHECK_MINUS(isolane_stream_try_read(stream, &byte, 1), ECONNABORTED, "forked");
	CHECK_MINUS(isolane_stream_shutdown(stream, SHUT_RD), ECONNABORTED, "forked");
	CHECK_MINUS(isolane_stream_shutdown(stream, SHUT_WR), ECONNABORTED, "forked");
}

static void be_a_child(const char *engine, const struct inherited *parent)
{
	int far;
	isolane_session *session = parent->session;
	isolane_session *own;
	isolane_stream *another;
	CHECK_MINUS(isolane_session_check(session), ECONNABORTED, "which forked this one; open a session in this");
	refuse_stream(parent->stream);
	refuse_stream(parent->polled);
	refuse_stream(parent->plain);
	CHECK_MINUS(isolane_stream_arm(parent->polled, ISOLANE_READ), ECONNABORTED, "forked");
	CHECK_MINUS(isolane_poller_arm(parent->poller), ECONNABORTED, "forked");
	CHECK_MINUS(isolane_poller_disarm(parent->poller), ECONNABORTED, "forked");
	CHECK_FAILS(isolane_stream_adopt(session, pair(&far), NULL), ECONNABORTED, "forked");
	CHECK_FAILS(isolane_poller_adopt(parent->poller, pair(&far), NULL), ECONNABORTED, "forked");
	CHECK_MINUS(isolane_stream_into_fd(parent->plain), ECONNABORTED, "forked");
	isolane_stream_close(parent->polled);
	isolane_poller_close(parent->poller);
	isolane_stream_close(parent->stream);
	isolane_session_close(session);

	own = isolane_session_open(engine, 4 << 20, ISOLANE_NO_SPAWN);
	CHECK(own != NULL);
	another = isolane_stream_adopt(own, pair(&far), NULL);
	CHECK(another != NULL);
	echo(another, far);
	isolane_stream_close(another);
	isolane_session_close(own);
}

int main(int count, char **arguments)
{
	int far[3], status = -1;
	pid_t child;
	char *memory;
	size_t bytes;
	isolane_session *unused;
	struct inherited own;
	CHECK(count == 2);
	unused = isolane_session_open(arguments[1], 4 << 20, ISOLANE_NO_SPAWN);
	CHECK(unused != NULL);
	memory = memory_of_session(&bytes);
	own.session = isolane_session_open(arguments[1], 4 << 20, ISOLANE_NO_SPAWN);
	CHECK(own.session != NULL);
	own.poller = isolane_poller_new(own.session, 1);
	CHECK(own.poller != NULL);
	own.stream = isolane_stream_adopt(own.session, pair(&far[0]), NULL);
	CHECK(own.stream != NULL);
	own.polled = isolane_poller_adopt(own.poller, pair(&far[1]), NULL);
	CHECK(own.polled != NULL);
	own.plain = plain(own.session, &far[2]);
	echo(own.stream, far[0]);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		reuse_addresses(unused, memory, bytes);
		be_a_child(arguments[1], &own);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(isolane_session_check(own.session) == 0 && isolane_session_check(unused) == 0);
	echo(own.stream, far[0]);
	echo(own.polled, far[1]);
	echo(own.plain, far[2]);
	isolane_stream_close(own.stream);
	isolane_stream_close(own.polled);
	isolane_stream_close(own.plain);
	isolane_poller_close(own.poller);
	isolane_session_close(own.session);
	isolane_session_close(unused);
	return 0;
}
