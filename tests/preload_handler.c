// A handler of a signal sends on a connection, while the program allocates memory: `write` is safe in a handler.
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static int near, far;
static volatile long sent;

static void handle(int number) {
	(void)number;
	sent += write(near, "x", 1) == 1;
}

static void *drain(void *unused) {
	char bytes[4096];
	while (read(far, bytes, sizeof bytes) > 0) {
	}
	return unused;
}

int main(void) {
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (void *)&address, length) || listen(listener, 1) || getsockname(listener, (void *)&address, &length))
		return 1;
	near = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(near, (void *)&address, length) || (far = accept(listener, 0, 0)) < 0)
		return 2;
	// The first message moves the connection.
	if (write(near, "x", 1) != 1)
		return 3;
	// The handler interrupts no other call on a connection.
	sigset_t alarms;
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarms, 0);
	pthread_t thread;
	pthread_create(&thread, 0, drain, 0);
	pthread_sigmask(SIG_UNBLOCK, &alarms, 0);
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &action, 0);
	struct itimerval interval = {{0, 50}, {0, 50}};
	setitimer(ITIMER_REAL, &interval, 0);
	void *blocks[64] = {0};
	for (unsigned random = 0; sent < 5000; random = random * 1103515245 + 12345) {
		free(blocks[random >> 26]);
		blocks[random >> 26] = malloc((random >> 8) % 5000 + 1);
	}
	interval = (struct itimerval){0};
	setitimer(ITIMER_REAL, &interval, 0);
	exit(sent < 5000);
}
