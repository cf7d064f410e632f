/*
 * Sends a line to a TCP server through an isolated engine, and prints the reply.
 *
 *     cc echo.c $(pkg-config --cflags --libs isolane) -o echo
 *     ./echo 127.0.0.1:7 hello
 *
 * A third argument is the socket of the engine; by default one is started if none runs.
 */
#include <isolane.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, isolane_error_text());
	return 1;
}

int main(int count, char **arguments)
{
	isolane_session *session;
	isolane_stream *stream;
	char reply[4096];
	ssize_t length;

	if (count < 3) {
		fprintf(stderr, "usage: %s HOST:PORT TEXT [ENGINE-SOCKET]\n", arguments[0]);
		return 2;
	}
	if (strcmp(isolane_version(), ISOLANE_VERSION) != 0) {
		fprintf(stderr, "compiled for %s, linked with %s\n", ISOLANE_VERSION, isolane_version());
		return 1;
	}
	session = isolane_session_open(count > 3 ? arguments[3] : NULL, 0, 0);
	if (session == NULL)
		return fail("cannot attach to an engine");
	stream = isolane_stream_connect(session, arguments[1], NULL);
	if (stream == NULL)
		return fail(arguments[1]);
	if (isolane_stream_write(stream, arguments[2], strlen(arguments[2])) < 0)
		return fail("cannot write");
	length = isolane_stream_read(stream, reply, sizeof reply);
	if (length < 0)
		return fail("cannot read");
	printf("%.*s\n", (int)length, reply);
	isolane_stream_close(stream);
	isolane_session_close(session);
	return 0;
}
