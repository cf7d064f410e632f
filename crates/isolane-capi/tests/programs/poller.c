/*
 * An echo server of many connections in one thread, which waits for its listener and its poller with epoll. The
 * clients, in another thread, wait for their poller.
 *
 *     poller ENGINE-SOCKET
 */
#define _POSIX_C_SOURCE 200809L

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

enum { CLIENTS = 20, ROUNDS = 50, BYTES = 1000 };

struct server {
	isolane_session *session;
	int listener;
};

/* A connection of the server, and its bytes to send back. */
struct connection {
	char bytes[4096];
	size_t from, to;
};

/* Reads and writes without waiting, then arms the stream. Returns 0 once the connection is closed. */
static int progress(isolane_stream *stream)
{
	struct connection *connection = isolane_stream_data(stream);
	ssize_t count;
	int ready;
	do {
		while (connection->from < connection->to) {
			count = isolane_stream_try_write(stream, connection->bytes + connection->from,
			                                 connection->to - connection->from);
			if (count < 0) {
				CHECK(errno == EAGAIN);
				break;
			}
			connection->from += (size_t)count;
		}
		if (connection->from == connection->to) {
			count = isolane_stream_try_read(stream, connection->bytes, sizeof connection->bytes);
			if (count == 0) {
				free(connection);
				isolane_stream_close(stream);
				return 0;
			}
			CHECK(count > 0 || errno == EAGAIN);
			connection->from = 0;
			connection->to = count > 0 ? (size_t)count : 0;
		}
		ready = isolane_stream_arm(stream, connection->to > 0 ? ISOLANE_WRITE : ISOLANE_READ);
		CHECK(ready >= 0);
	} while (ready == 1);
	return 1;
}

static void *serve(void *argument)
{
	struct server *server = argument;
	isolane_poller *poller = isolane_poller_new(server->session, CLIENTS);
	CHECK(poller != NULL);
	int sleeper = epoll_create1(EPOLL_CLOEXEC), accepted = 0, open = 0;
	struct epoll_event event = {.events = EPOLLIN, .data.fd = server->listener};
	CHECK(epoll_ctl(sleeper, EPOLL_CTL_ADD, server->listener, &event) == 0);
	event.data.fd = isolane_poller_fd(poller);
	CHECK(event.data.fd >= 0 && epoll_ctl(sleeper, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
	while (accepted < CLIENTS || open > 0) {
		isolane_stream *stream;
		int taken, ready = isolane_poller_arm(poller);
		CHECK(ready >= 0);
		int count = epoll_wait(sleeper, &event, 1, ready ? 0 : -1);
		CHECK(count >= 0 && isolane_poller_disarm(poller) == 0);
		if (count == 1 && event.data.fd == server->listener) {
			int one = 1, fd = accept(server->listener, NULL, NULL);
			CHECK(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
			CHECK((stream = isolane_poller_adopt(poller, fd, NULL)) != NULL);
			CHECK(isolane_stream_set_data(stream, calloc(1, sizeof(struct connection))) == 0);
			accepted++;
			open += progress(stream);
		}
		while ((taken = isolane_poller_take(poller, &stream)) == 1)
			open -= !progress(stream);
		CHECK(taken == 0 && stream == NULL);
	}
	close(sleeper);
	isolane_poller_close(poller);
	return NULL;
}

static int connected(const struct sockaddr_in *address)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
	return fd;
}

/* Bytes of a client, which sends each message after the reply to the one before. */
struct client {
	size_t received, sent;
};

/* Sends and receives without waiting, then arms the stream. Returns 0 once the client is done. */
static int exchange(isolane_stream *stream)
{
	static char message[BYTES], seen[BYTES];
	struct client *client = isolane_stream_data(stream);
	int ready;
	memset(message, 'm', sizeof message);
	do {
		ssize_t count = isolane_stream_try_read(stream, seen, sizeof seen);
		CHECK(count > 0 || errno == EAGAIN);
		if (count > 0) {
			CHECK(memcmp(seen, message, (size_t)count) == 0);
			client->received += (size_t)count;
		}
		if (client->received == (size_t)ROUNDS * BYTES) {
			isolane_stream_close(stream);
			return 0;
		}
		if (client->received == client->sent) {
			CHECK(isolane_stream_try_write(stream, message, BYTES) == BYTES);
			client->sent += BYTES;
		}
		ready = isolane_stream_arm(stream, ISOLANE_READ);
		CHECK(ready >= 0);
	} while (ready == 1);
	return 1;
}

static void run_clients(isolane_session *session, const struct sockaddr_in *address)
{
	struct client clients[CLIENTS] = {{0, 0}};
	isolane_poller *poller = isolane_poller_new(session, CLIENTS);
	isolane_stream *stream;
	int left = CLIENTS;
	CHECK(poller != NULL);
	CHECK(isolane_poller_wait(poller, &stream, 0) == 0 && stream == NULL);
	for (int i = 0; i < CLIENTS; i++) {
		CHECK((stream = isolane_poller_adopt(poller, connected(address), NULL)) != NULL);
		CHECK(isolane_stream_set_data(stream, &clients[i]) == 0);
		CHECK(isolane_stream_arm(stream, ISOLANE_READ | ISOLANE_WRITE) == 1);
		left -= !exchange(stream);
	}
	while (left > 0) {
		CHECK(isolane_poller_wait(poller, &stream, 60000000000) == 1);
		left -= !exchange(stream);
	}
	isolane_poller_close(poller);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	pthread_t thread;
	CHECK(argc == 2);
	struct server server = {isolane_session_open(argv[1], 0, 0), socket(AF_INET, SOCK_STREAM, 0)};
	CHECK(server.session != NULL && server.listener >= 0);
	CHECK(bind(server.listener, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK(listen(server.listener, CLIENTS) == 0);
	CHECK(getsockname(server.listener, (struct sockaddr *)&address, &length) == 0);
	CHECK(pthread_create(&thread, NULL, serve, &server) == 0);
	run_clients(server.session, &address);
	CHECK(pthread_join(thread, NULL) == 0);
	isolane_session_close(server.session);
	return 0;
}
