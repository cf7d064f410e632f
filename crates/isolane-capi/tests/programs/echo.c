/*
 * An echo with blocking calls, one thread on each side, both through the engine. Then one end alternates between a
 * plain socket and a stream.
 *
 *     echo ENGINE-SOCKET
 */
#define _POSIX_C_SOURCE 200809L

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

enum { BYTES = 3 << 20, CHUNK = 50000, TURNS = 20 };

static unsigned char pattern(size_t position)
{
	return (unsigned char)(position * 2654435761u >> 13);
}

/* Sends all bytes back until the peer shuts down. */
static void *serve(void *argument)
{
	isolane_stream *stream = isolane_listener_accept(argument);
	unsigned char bytes[7000];
	ssize_t count;
	CHECK(stream != NULL);
	while ((count = isolane_stream_read(stream, bytes, sizeof bytes)) > 0) {
		for (ssize_t at = 0, sent; at < count; at += sent) {
			sent = isolane_stream_write(stream, bytes + at, (size_t)(count - at));
			CHECK(sent > 0);
		}
	}
	CHECK(count == 0);
	isolane_stream_close(stream);
	return NULL;
}

/* Uses the write half while another thread reads. */
static void *write_pattern(void *argument)
{
	static unsigned char bytes[BYTES];
	for (size_t at = 0; at < BYTES; at++)
		bytes[at] = pattern(at);
	for (size_t at = 0; at < BYTES;) {
		/* Some writes are long enough to bypass the ring. */
		size_t chunk = at % 3 == 0 ? CHUNK : 100 + at % 1000;
		ssize_t sent = isolane_stream_write(argument, bytes + at, chunk < BYTES - at ? chunk : BYTES - at);
		CHECK(sent > 0);
		at += (size_t)sent;
	}
	return NULL;
}

static void echo_pattern(isolane_stream *stream)
{
	pthread_t writer;
	unsigned char bytes[9000];
	CHECK(pthread_create(&writer, NULL, write_pattern, stream) == 0);
	for (size_t at = 0; at < BYTES;) {
		ssize_t count = isolane_stream_read(stream, bytes, sizeof bytes);
		CHECK(count > 0);
		for (ssize_t i = 0; i < count; i++, at++)
			CHECK(bytes[i] == pattern(at));
	}
	CHECK(pthread_join(writer, NULL) == 0);
}

/* Alternates between a plain socket and a stream while bytes are in flight. */
static isolane_stream *there_and_back(isolane_session *session, isolane_stream *stream)
{
	for (int turn = 0; turn < TURNS; turn++) {
		char bytes[4] = "", expected[4] = {'a', 'b', 'c', (char)turn};
		ssize_t count = 0, more;
		int fd;
		CHECK(isolane_stream_write(stream, expected, 4) == 4);
		CHECK((fd = isolane_stream_into_fd(stream)) >= 0);
		while (count < 4) {
			CHECK((more = recv(fd, bytes + count, (size_t)(4 - count), 0)) > 0);
			count += more;
		}
		CHECK(memcmp(bytes, expected, 4) == 0);
		CHECK(send(fd, expected, 4, 0) == 4);
		CHECK((stream = isolane_stream_adopt(session, fd, NULL)) != NULL);
		CHECK(isolane_stream_fd(stream) != fd);
		for (count = 0; count < 4; count += more)
			CHECK((more = isolane_stream_read(stream, bytes + count, (size_t)(4 - count))) > 0);
		CHECK(memcmp(bytes, expected, 4) == 0);
	}
	return stream;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address;
	socklen_t length = sizeof address;
	char name[64];
	uint32_t cpus[4];
	int one = 1, data = 0;
	pthread_t server;

	CHECK(argc == 2);
	CHECK(strcmp(isolane_version(), ISOLANE_VERSION) == 0);
	CHECK(strcmp(isolane_error_text(), "") == 0);
	isolane_session *session = isolane_session_open(argv[1], 64 << 20, ISOLANE_NO_SPAWN);
	CHECK(session != NULL);
	CHECK(isolane_session_check(session) == 0);
	CHECK(isolane_session_cores(session, NULL, 0) == 1);
	CHECK(isolane_session_cores(session, cpus, 4) == 1);

	isolane_listener *listener = isolane_listener_bind(session, "127.0.0.1:0", NULL);
	CHECK(listener != NULL);
	CHECK(getsockname(isolane_listener_fd(listener), (struct sockaddr *)&address, &length) == 0);
	snprintf(name, sizeof name, "127.0.0.1:%d", ntohs(address.sin_port));
	CHECK(pthread_create(&server, NULL, serve, listener) == 0);

	isolane_options *options = isolane_options_new();
	CHECK(options != NULL);
	CHECK(isolane_options_set(options, ISOLANE_RX_BYTES, 65536) == 0);
	CHECK(isolane_options_set(options, ISOLANE_TX_BYTES, 65536) == 0);
	CHECK(isolane_options_set(options, ISOLANE_BYPASS_WRITE_MIN, 40000) == 0);
	CHECK(isolane_options_set(options, ISOLANE_BYPASS_READ_MIN, 3000) == 0);
	CHECK(isolane_options_set(options, ISOLANE_SPIN_NS, 1000) == 0);
	CHECK(isolane_options_set(options, ISOLANE_CORE, 0) == 0);
	isolane_stream *stream = isolane_stream_connect(session, name, options);
	CHECK(stream != NULL);
	isolane_options_free(options);

	CHECK(isolane_stream_core(stream) == 0);
	length = sizeof address;
	CHECK(getpeername(isolane_stream_fd(stream), (struct sockaddr *)&address, &length) == 0);
	CHECK(setsockopt(isolane_stream_fd(stream), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
	CHECK(isolane_stream_data(stream) == NULL);
	CHECK(isolane_stream_set_data(stream, &data) == 0 && isolane_stream_data(stream) == &data);

	/* No data: without waiting, and after a timeout. */
	CHECK_MINUS(isolane_stream_try_read(stream, name, 1), EAGAIN, "try again");
	CHECK(isolane_stream_set_read_timeout(stream, 1000000) == 0);
	CHECK_MINUS(isolane_stream_read(stream, name, 1), EAGAIN, "try again");
	CHECK(isolane_stream_set_read_timeout(stream, -1) == 0);
	CHECK(isolane_stream_set_write_timeout(stream, 60000000000) == 0);

	echo_pattern(stream);
	stream = there_and_back(session, stream);

	/* The stream keeps its session open. */
	isolane_session_close(session);
	echo_pattern(stream);
	CHECK(isolane_stream_shutdown(stream, SHUT_WR) == 0);
	CHECK_MINUS(isolane_stream_write(stream, name, 1), EPIPE, "isolane_stream_write");
	CHECK(isolane_stream_read(stream, name, 1) == 0);
	CHECK(pthread_join(server, NULL) == 0);
	isolane_stream_close(stream);

	int fd = isolane_listener_into_fd(listener);
	CHECK(fd >= 0 && close(fd) == 0);
	return 0;
}
