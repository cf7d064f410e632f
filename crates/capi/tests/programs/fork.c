/*
 * A child of a program that has a session: the library refuses to use it there, and the child does no harm to the
 * session of its parent. A session of its own works.
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

/* One end is returned, the other is `*far`. */
static int pair(int *far)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), near = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	CHECK(connect(near, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK((*far = accept(listener, NULL, NULL)) >= 0);
	close(listener);
	return near;
}

static void echo(isolane_stream *stream, int far)
{
	char bytes[3];
	CHECK(isolane_stream_write(stream, "abc", 3) == 3);
	CHECK(recv(far, bytes, 3, MSG_WAITALL) == 3 && memcmp(bytes, "abc", 3) == 0);
	CHECK(send(far, "d", 1, 0) == 1);
	CHECK(isolane_stream_read(stream, bytes, 1) == 1 && bytes[0] == 'd');
}

/* Where the memory of the only session is mapped, which is not mapped in a child. */
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

/* Memory of the child's own may be where that of its parent's session is: to close the session leaves it alone. */
static void reuse_addresses(isolane_session *inherited, char *start, size_t bytes)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	CHECK(mmap(start, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == start);
	memset(start, 7, bytes);
	isolane_session_close(inherited);
	CHECK(start[0] == 7 && start[bytes - 1] == 7);
	CHECK(munmap(start, bytes) == 0);
}

static void be_a_child(const char *engine, isolane_session *session, isolane_stream *stream)
{
	int far;
	char byte = 0;
	isolane_session *own;
	isolane_stream *another;
	CHECK_MINUS(isolane_session_check(session), ECONNABORTED, "which has forked this one; open a session in this");
	CHECK_MINUS(isolane_stream_write(stream, "x", 1), ECONNABORTED, "forked");
	CHECK_MINUS(isolane_stream_read(stream, &byte, 1), ECONNABORTED, "forked");
	CHECK_FAILS(isolane_stream_adopt(session, pair(&far), NULL), ECONNABORTED, "forked");
	isolane_stream_close(stream);
	isolane_session_close(session);

	own = isolane_session_open(engine, 4 << 20, ISOLANE_DONT_START);
	CHECK(own != NULL);
	another = isolane_stream_adopt(own, pair(&far), NULL);
	CHECK(another != NULL);
	echo(another, far);
	isolane_stream_close(another);
	isolane_session_close(own);
}

int main(int count, char **arguments)
{
	int far, status = -1;
	pid_t child;
	char *memory;
	size_t bytes;
	isolane_session *session, *unused;
	isolane_stream *stream;
	CHECK(count == 2);
	unused = isolane_session_open(arguments[1], 4 << 20, ISOLANE_DONT_START);
	CHECK(unused != NULL);
	memory = memory_of_session(&bytes);
	session = isolane_session_open(arguments[1], 4 << 20, ISOLANE_DONT_START);
	CHECK(session != NULL);
	stream = isolane_stream_adopt(session, pair(&far), NULL);
	CHECK(stream != NULL);
	echo(stream, far);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		reuse_addresses(unused, memory, bytes);
		be_a_child(arguments[1], session, stream);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(isolane_session_check(session) == 0 && isolane_session_check(unused) == 0);
	echo(stream, far);
	isolane_stream_close(stream);
	isolane_session_close(session);
	isolane_session_close(unused);
	return 0;
}
