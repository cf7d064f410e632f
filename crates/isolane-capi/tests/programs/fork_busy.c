/*
 * A process forked while another thread opens a volume: its functions fail instead of waiting for the locks of that
 * thread. One forked at another time can open volumes.
 */
#define _GNU_SOURCE

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void *open_silent_target(void *uri)
{
	CHECK(isolane_volume_open(uri, 0) == NULL);
	return NULL;
}

static void wait_for(pid_t child)
{
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	char uri[128];
	pid_t child;
	pthread_t thread;
	int connection, listening = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	CHECK(bind(listening, (struct sockaddr *)&address, length) == 0 && listen(listening, 1) == 0);
	CHECK(getsockname(listening, (struct sockaddr *)&address, &length) == 0);
	snprintf(uri, sizeof uri, "nvme+tcp://127.0.0.1:%d/nqn.2024-01.org.example:silent", ntohs(address.sin_port));
	CHECK(pthread_create(&thread, NULL, open_silent_target, uri) == 0);
	/* The thread waits for a response now. */
	CHECK((connection = accept(listening, NULL, NULL)) >= 0);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		CHECK_FAILS(isolane_volume_open("mem:1M", 0), EDEADLK, "during fork()");
		CHECK_FAILS(isolane_session_open("/nowhere", 0, ISOLANE_NO_SPAWN), EDEADLK, "call exec()");
		/* Its children as well. */
		CHECK((child = fork()) >= 0);
		if (child != 0)
			wait_for(child);
		CHECK_FAILS(isolane_volume_open("mem:1M", 0), EDEADLK, "during fork()");
		_exit(0);
	}
	wait_for(child);
	close(listening);
	close(connection);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		isolane_volume *volume = isolane_volume_open("mem:1M", 0);
		CHECK(volume != NULL);
		isolane_volume_close(volume);
		_exit(0);
	}
	wait_for(child);
	return 0;
}
