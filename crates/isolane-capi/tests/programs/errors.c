/*
 * Errors: wrong arguments, a missing engine, a peer that resets, signals, and an engine that exits. The program
 * survives each.
 *
 *     errors ENGINE-SOCKET
 */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

/* Returns one end of a connection; the other is `*far`. */
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

static void check_null_pointers(isolane_session *session)
{
	isolane_stream *stream = NULL;
	char byte = 0;
	CHECK_MINUS(isolane_session_check(NULL), EINVAL, "isolane_session_check: pointer is NULL");
	CHECK_MINUS(isolane_session_cores(NULL, NULL, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_session_cores(session, NULL, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_options_set(NULL, ISOLANE_CORE, 0), EINVAL, "NULL");
	CHECK_FAILS(isolane_stream_connect(NULL, "127.0.0.1:1", NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_stream_connect(session, NULL, NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_stream_adopt(NULL, 0, NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_into_fd(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_read(NULL, &byte, 1), EINVAL, "stream is NULL");
	CHECK_MINUS(isolane_stream_write(NULL, &byte, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_try_read(NULL, &byte, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_try_write(NULL, &byte, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_set_read_timeout(NULL, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_set_write_timeout(NULL, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_shutdown(NULL, SHUT_RDWR), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_fd(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_core(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_arm(NULL, ISOLANE_READ), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_set_data(NULL, NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_stream_data(NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_listener_bind(NULL, "127.0.0.1:0", NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_listener_bind(session, NULL, NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_listener_from_fd(NULL, 0, NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_listener_accept(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_listener_fd(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_listener_into_fd(NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_poller_new(NULL, 1), EINVAL, "NULL");
	CHECK_FAILS(isolane_poller_adopt(NULL, 0, NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_poller_wait(NULL, &stream, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_poller_take(NULL, &stream), EINVAL, "NULL");
	CHECK_MINUS(isolane_poller_arm(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_poller_disarm(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_poller_fd(NULL), EINVAL, "NULL");
	isolane_session_close(NULL);
	isolane_options_free(NULL);
	isolane_stream_close(NULL);
	isolane_listener_close(NULL);
	isolane_poller_close(NULL);
}

static void check_wrong_arguments(isolane_session *session)
{
	char *nowhere = NULL, byte = 0;
	int far, fd = pair(&far);
	isolane_options *options = isolane_options_new();
	CHECK_MINUS(isolane_options_set(options, 0, 0), EINVAL, "unknown option");
	CHECK_MINUS(isolane_options_set(options, ISOLANE_CORE, (uint64_t)1 << 32), EINVAL, "too large");
	CHECK_MINUS(isolane_options_set(options, ISOLANE_RX_BYTES, (uint64_t)1 << 40), EINVAL, "too large");
	CHECK_MINUS(isolane_options_set(options, ISOLANE_TX_BYTES, UINT64_MAX), EINVAL, "too large");
	CHECK(isolane_options_set(options, ISOLANE_RX_BYTES, 1 << 30) == 0);
	CHECK(isolane_options_set(options, ISOLANE_TX_BYTES, 1 << 30) == 0);
	CHECK_FAILS(isolane_stream_adopt(session, fd, options), ENOMEM, "attach with more memory");
	CHECK(isolane_options_set(options, ISOLANE_RX_BYTES, 0) == 0);
	CHECK(isolane_options_set(options, ISOLANE_TX_BYTES, 1 << 20) == 0);
	CHECK(isolane_options_set(options, ISOLANE_CORE, 1000) == 0);
	CHECK_FAILS(isolane_stream_adopt(session, fd, options), EPERM, "refuses");
	isolane_options_free(options);

	CHECK_FAILS(isolane_stream_connect(session, "127.0.0.1", NULL), EINVAL, "HOST:PORT");
	CHECK_FAILS(isolane_stream_connect(session, "127.0.0.1:99999", NULL), EINVAL, "HOST:PORT");
	CHECK_FAILS(isolane_stream_connect(session, ":1", NULL), EHOSTUNREACH, "unknown host");
	CHECK_FAILS(isolane_stream_connect(session, "127.0.0.1:1", NULL), ECONNREFUSED, "refused");
	CHECK_FAILS(isolane_stream_adopt(session, -1, NULL), EBADF, "-1 is not a descriptor");
	CHECK_FAILS(isolane_stream_adopt(session, 1 << 20, NULL), EBADF, "isolane_stream_adopt");
	int null = open("/dev/null", O_RDONLY);
	CHECK_FAILS(isolane_stream_adopt(session, null, NULL), ENOTSOCK, "isolane_stream_adopt");
	CHECK_FAILS(isolane_listener_from_fd(session, null, NULL), ENOTSOCK, "isolane_listener_from_fd");
	CHECK_FAILS(isolane_listener_from_fd(session, fd, NULL), EINVAL, "call listen()");
	CHECK_FAILS(isolane_listener_from_fd(session, -7, NULL), EBADF, "-7");
	CHECK(close(null) == 0);
	CHECK_FAILS(isolane_poller_new(session, UINT32_MAX), ENOMEM, "attach with more memory");
	CHECK_FAILS(isolane_session_open("/no/such/engine", 0, ISOLANE_NO_SPAWN), ENOENT,
	            "`isolane engine --socket /no/such/engine`");
	CHECK(setenv("ISOLANE_BIN", "/no/such/program", 1) == 0);
	CHECK_FAILS(isolane_session_open("/no-such-engine", 0, 0), ENOENT, "/no/such/program");
	CHECK_FAILS(isolane_session_open("/no/such/engine", 0, 0), ENOENT, "no directory /no/such");
	CHECK(setenv("ISOLANE_BIN", "/bin/false", 1) == 0);
	CHECK_FAILS(isolane_session_open("/no-such-engine", 0, 0), ENOENT, "/bin/false exited silently");
	CHECK(setenv("ISOLANE_BIN", "/bin/true", 1) == 0);
	CHECK_FAILS(isolane_session_open("/no-such-engine", 0, 0), ENOENT, "/bin/true was started");
	CHECK_FAILS(isolane_session_open("/no/such/engine", 0, 2), EINVAL, "ISOLANE_NO_SPAWN");

	/* A failed adoption leaves the socket usable. */
	isolane_stream *stream = isolane_stream_adopt(session, fd, NULL);
	CHECK(stream != NULL);
	CHECK_MINUS(isolane_stream_read(stream, NULL, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_write(stream, NULL, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_read(stream, &byte, SIZE_MAX), EINVAL, "SSIZE_MAX");
	CHECK_MINUS(isolane_stream_write(stream, &byte, SIZE_MAX), EINVAL, "SSIZE_MAX");
	CHECK(isolane_stream_read(stream, nowhere, 0) == 0 && isolane_stream_write(stream, nowhere, 0) == 0);
	CHECK_MINUS(isolane_stream_shutdown(stream, 3), EINVAL, "SHUT_RD");
	CHECK_MINUS(isolane_stream_arm(stream, 0), EINVAL, "ISOLANE_READ");
	CHECK_MINUS(isolane_stream_arm(stream, ISOLANE_READ), EINVAL, "isolane_poller_adopt");
	CHECK(isolane_stream_shutdown(stream, SHUT_RD) == 0 && isolane_stream_read(stream, &byte, 1) == 0);
	isolane_stream_close(stream);
	close(far);
}

/* The peer closes with unread bytes: a reset, and no SIGPIPE. */
static void check_reset_by_peer(isolane_session *session)
{
	struct linger at_once = {1, 0};
	char bytes[100] = "";
	int far, fd = pair(&far);
	isolane_stream *stream = isolane_stream_adopt(session, fd, NULL);
	CHECK(stream != NULL);
	CHECK(setsockopt(far, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0 && close(far) == 0);
	CHECK_MINUS(isolane_stream_read(stream, bytes, sizeof bytes), ECONNRESET, "reset by peer");
	for (int i = 0; i < 3; i++) {
		CHECK(isolane_stream_write(stream, bytes, sizeof bytes) == -1);
		CHECK(errno == EPIPE || errno == ECONNRESET);
	}
	isolane_stream_close(stream);
}

/* Nonblocking accept, and errors of bind. */
static void check_listener(isolane_session *session)
{
	struct sockaddr_in address;
	socklen_t length = sizeof address;
	isolane_listener *first = isolane_listener_bind(session, "127.0.0.1:0", NULL);
	CHECK(first != NULL);
	isolane_listener *listener = isolane_listener_from_fd(session, isolane_listener_into_fd(first), NULL);
	CHECK(listener != NULL);
	int fd = isolane_listener_fd(listener);
	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK_FAILS(isolane_listener_accept(listener), EAGAIN, "try again");
	CHECK(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
	char name[64];
	snprintf(name, sizeof name, "127.0.0.1:%d", ntohs(address.sin_port));
	CHECK_FAILS(isolane_listener_bind(session, name, NULL), EADDRINUSE, "in use");
	isolane_listener_close(listener);
}

/* The poller returns no closed stream. */
static void check_poller_skips_closed_streams(isolane_session *session)
{
	int far, other, fd = pair(&far);
	isolane_stream *next;
	isolane_poller *poller = isolane_poller_new(session, 4);
	CHECK(poller != NULL);
	isolane_stream *closed = isolane_poller_adopt(poller, fd, NULL);
	isolane_stream *open = isolane_poller_adopt(poller, pair(&other), NULL);
	CHECK(closed != NULL && open != NULL);
	CHECK(isolane_stream_arm(closed, ISOLANE_READ) == 0);
	CHECK(send(far, "x", 1, 0) == 1);
	/* Waits for a notification, and leaves it queued. */
	int ready;
	while ((ready = isolane_poller_arm(poller)) == 0)
		;
	CHECK(ready == 1 && isolane_poller_disarm(poller) == 0);
	isolane_stream_close(closed);
	int count;
	while ((count = isolane_poller_wait(poller, &next, 1000000)) == 1)
		CHECK(next == open);
	CHECK(count == 0 && next == NULL);
	CHECK(isolane_poller_take(poller, &next) == 0 && next == NULL);
	CHECK(isolane_stream_arm(open, ISOLANE_READ) == 0);
	CHECK(send(other, "x", 1, 0) == 1);
	char byte;
	do {
		CHECK(isolane_poller_wait(poller, &next, -1) == 1 && next == open);
	} while (isolane_stream_arm(open, ISOLANE_READ) == 0);
	isolane_poller_close(poller);
	CHECK(isolane_stream_read(open, &byte, 1) == 1 && byte == 'x');
	isolane_stream_close(open);
	close(far), close(other);
}

/* Only the program's own thread handles signals, and it blocks this one. */
static void check_signals(const char *path)
{
	int far, fd = pair(&far);
	isolane_session *session = isolane_session_open(path, 4 << 20, 0);
	isolane_stream *stream = session ? isolane_stream_adopt(session, fd, NULL) : NULL;
	sigset_t set, pending;
	CHECK(stream != NULL);
	sigemptyset(&set);
	CHECK(sigprocmask(SIG_SETMASK, NULL, &pending) == 0 && !sigismember(&pending, SIGUSR1));
	sigaddset(&set, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	CHECK(kill(getpid(), SIGUSR1) == 0);
	CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1));
	int number;
	CHECK(sigwait(&set, &number) == 0 && number == SIGUSR1);
	CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
	isolane_stream_close(stream);
	isolane_session_close(session);
	close(far);
}

/* The test that started this program stops the engine once it reads a line. */
static void check_engine_exit(isolane_session *session)
{
	int far, other, fd = pair(&far);
	char byte;
	isolane_stream *next, *stream = isolane_stream_adopt(session, fd, NULL);
	isolane_poller *poller = isolane_poller_new(session, 1);
	CHECK(stream != NULL && poller != NULL && isolane_session_check(session) == 0);
	fd = pair(&other);
	printf("stop the engine\n");
	fflush(stdout);
	CHECK_MINUS(isolane_stream_read(stream, &byte, 1), ECONNABORTED, "attach again");
	CHECK_MINUS(isolane_stream_write(stream, &byte, 1), ECONNABORTED, "attach again");
	CHECK_MINUS(isolane_poller_wait(poller, &next, -1), ECONNABORTED, "attach again");
	CHECK_MINUS(isolane_session_check(session), ECONNABORTED, "attach again");
	CHECK_FAILS(isolane_stream_adopt(session, fd, NULL), ECONNABORTED, "attach again");
	CHECK(close(fd) == 0);
	/* Works without an engine. */
	fd = isolane_stream_into_fd(stream);
	CHECK(fd >= 0 && write(fd, "x", 1) == 1 && read(far, &byte, 1) == 1 && byte == 'x');
	isolane_poller_close(poller);
	close(far), close(other), close(fd);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	CHECK_FAILS(isolane_session_open(argv[1], 4095, 0), EINVAL, "whole pages of 4096");
	isolane_session *session = isolane_session_open(argv[1], 4 << 20, 0);
	CHECK(session != NULL);
	check_null_pointers(session);
	check_wrong_arguments(session);
	check_reset_by_peer(session);
	check_listener(session);
	check_poller_skips_closed_streams(session);
	check_signals(argv[1]);
	check_engine_exit(session);
	isolane_session_close(session);
	return 0;
}
