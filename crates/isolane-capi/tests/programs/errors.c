/*
 * What goes wrong: wrong arguments, an engine that is not there, a peer that resets, signals, and an engine that
 * ends. Nothing of it ends the program.
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

static void nothing_is_refused(isolane_session *session)
{
	isolane_stream *stream = NULL;
	char byte = 0;
	CHECK_MINUS(isolane_session_check(NULL), EINVAL, "isolane_session_check: a pointer is NULL");
	CHECK_MINUS(isolane_session_cores(NULL, NULL, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_session_cores(session, NULL, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_options_set(NULL, ISOLANE_CORE, 0), EINVAL, "NULL");
	CHECK_FAILS(isolane_stream_connect(NULL, "127.0.0.1:1", NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_stream_connect(session, NULL, NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_stream_adopt(NULL, 0, NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_into_fd(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_stream_read(NULL, &byte, 1), EINVAL, "the stream is NULL");
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

static void wrong_arguments_are_refused(isolane_session *session)
{
	char *nowhere = NULL, byte = 0;
	int far, fd = pair(&far);
	isolane_options *options = isolane_options_new();
	CHECK_MINUS(isolane_options_set(options, 0, 0), EINVAL, "no such option");
	CHECK_MINUS(isolane_options_set(options, ISOLANE_CORE, (uint64_t)1 << 32), EINVAL, "larger");
	CHECK_MINUS(isolane_options_set(options, ISOLANE_RX_BYTES, (uint64_t)1 << 40), EINVAL, "larger");
	CHECK_MINUS(isolane_options_set(options, ISOLANE_TX_BYTES, UINT64_MAX), EINVAL, "larger");
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
	CHECK_FAILS(isolane_stream_connect(session, ":1", NULL), EHOSTUNREACH, "is known");
	CHECK_FAILS(isolane_stream_connect(session, "127.0.0.1:1", NULL), ECONNREFUSED, "refused");
	CHECK_FAILS(isolane_stream_adopt(session, -1, NULL), EBADF, "-1 is no descriptor");
	CHECK_FAILS(isolane_stream_adopt(session, 1 << 20, NULL), EBADF, "isolane_stream_adopt");
	int null = open("/dev/null", O_RDONLY);
	CHECK_FAILS(isolane_stream_adopt(session, null, NULL), ENOTSOCK, "isolane_stream_adopt");
	CHECK_FAILS(isolane_listener_from_fd(session, null, NULL), ENOTSOCK, "isolane_listener_from_fd");
	CHECK_FAILS(isolane_listener_from_fd(session, fd, NULL), EINVAL, "call listen()");
	CHECK_FAILS(isolane_listener_from_fd(session, -7, NULL), EBADF, "-7");
	CHECK(close(null) == 0);
	CHECK_FAILS(isolane_poller_new(session, UINT32_MAX), ENOMEM, "attach with more memory");
	CHECK_FAILS(isolane_session_open("/no/such/engine", 0, ISOLANE_DONT_START), ENOENT,
	            "`isolane engine --socket /no/such/engine`");
	CHECK(setenv("ISOLANE_BIN", "/no/such/program", 1) == 0);
	CHECK_FAILS(isolane_session_open("/no-such-engine", 0, 0), ENOENT, "/no/such/program");
	CHECK_FAILS(isolane_session_open("/no/such/engine", 0, 0), ENOENT, "no directory /no/such");
	CHECK(setenv("ISOLANE_BIN", "/bin/false", 1) == 0);
	CHECK_FAILS(isolane_session_open("/no-such-engine", 0, 0), ENOENT, "/bin/false exited silently");
	CHECK(setenv("ISOLANE_BIN", "/bin/true", 1) == 0);
	CHECK_FAILS(isolane_session_open("/no-such-engine", 0, 0), ENOENT, "/bin/true was started");
	CHECK_FAILS(isolane_session_open("/no/such/engine", 0, 2), EINVAL, "ISOLANE_DONT_START");

	/* What could not be adopted is what it was. */
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

/* The peer has closed with bytes unread: a reset, and no SIGPIPE, whose default would end us. */
static void a_peer_that_resets_is_told_of(isolane_session *session)
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

/* A listener that does not wait, and the options of those that it accepts. */
static void a_listener_waits_as_its_socket_does(isolane_session *session)
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
	char words[64];
	snprintf(words, sizeof words, "127.0.0.1:%d", ntohs(address.sin_port));
	CHECK_FAILS(isolane_listener_bind(session, words, NULL), EADDRINUSE, "in use");
	isolane_listener_close(listener);
}

/* A notice about a stream that was closed is nobody's. */
static void closed_streams_are_not_told_of(isolane_session *session)
{
	int far, other, fd = pair(&far);
	isolane_stream *told;
	isolane_poller *poller = isolane_poller_new(session, 4);
	CHECK(poller != NULL);
	isolane_stream *closed = isolane_poller_adopt(poller, fd, NULL);
	isolane_stream *open = isolane_poller_adopt(poller, pair(&other), NULL);
	CHECK(closed != NULL && open != NULL);
	CHECK(isolane_stream_arm(closed, ISOLANE_READ) == 0);
	CHECK(send(far, "x", 1, 0) == 1);
	/* There is a notice now, which is not taken. */
	int ready;
	while ((ready = isolane_poller_arm(poller)) == 0)
		;
	CHECK(ready == 1 && isolane_poller_disarm(poller) == 0);
	isolane_stream_close(closed);
	int count;
	while ((count = isolane_poller_wait(poller, &told, 1000000)) == 1)
		CHECK(told == open);
	CHECK(count == 0 && told == NULL);
	CHECK(isolane_poller_take(poller, &told) == 0 && told == NULL);
	CHECK(isolane_stream_arm(open, ISOLANE_READ) == 0);
	CHECK(send(other, "x", 1, 0) == 1);
	char byte;
	do {
		CHECK(isolane_poller_wait(poller, &told, -1) == 1 && told == open);
	} while (isolane_stream_arm(open, ISOLANE_READ) == 0);
	isolane_poller_close(poller);
	CHECK(isolane_stream_read(open, &byte, 1) == 1 && byte == 'x');
	isolane_stream_close(open);
	close(far), close(other);
}

/* A signal of the program's is handled by the program's own threads: this one, which does not want it now. */
static void signals_are_not_the_librarys(const char *path)
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

/* Whoever has started this ends the engine when it reads a line. */
static void the_end_of_the_engine_is_told(isolane_session *session)
{
	int far, other, fd = pair(&far);
	char byte;
	isolane_stream *told, *stream = isolane_stream_adopt(session, fd, NULL);
	isolane_poller *poller = isolane_poller_new(session, 1);
	CHECK(stream != NULL && poller != NULL && isolane_session_check(session) == 0);
	fd = pair(&other);
	printf("end the engine\n");
	fflush(stdout);
	CHECK_MINUS(isolane_stream_read(stream, &byte, 1), ECONNABORTED, "attach again");
	CHECK_MINUS(isolane_stream_write(stream, &byte, 1), ECONNABORTED, "attach again");
	CHECK_MINUS(isolane_poller_wait(poller, &told, -1), ECONNABORTED, "attach again");
	CHECK_MINUS(isolane_session_check(session), ECONNABORTED, "attach again");
	CHECK_FAILS(isolane_stream_adopt(session, fd, NULL), ECONNABORTED, "attach again");
	CHECK(close(fd) == 0);
	/* It works without an engine. */
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
	nothing_is_refused(session);
	wrong_arguments_are_refused(session);
	a_peer_that_resets_is_told_of(session);
	a_listener_waits_as_its_socket_does(session);
	closed_streams_are_not_told_of(session);
	signals_are_not_the_librarys(argv[1]);
	the_end_of_the_engine_is_told(session);
	isolane_session_close(session);
	return 0;
}
