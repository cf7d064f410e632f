// Handlers of signals leave `poll` by jumps, 100 times: it then uses few more descriptors. Another handler polls as well.
#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static sigjmp_buf start;
static int near, far;

static void jump(int number) {
	siglongjmp(start, number);
}

static void nest(int number) {
	struct pollfd polled = {near, POLLIN, 0};
	poll(&polled, 1, 1);
	if (write(far, "x", 1) != 1)
		_exit(number);
}

static int descriptors(void) {
	int count = 0;
	DIR *directory = opendir("/proc/self/fd");
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

static void after(int microseconds, void (*handler)(int)) {
	struct itimerval timer = {{0, 0}, {0, microseconds}};
	signal(SIGALRM, handler);
	setitimer(ITIMER_REAL, &timer, 0);
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
	char byte;
	if (write(near, "x", 1) != 1 || read(far, &byte, 1) != 1 || write(far, "x", 1) != 1 || read(near, &byte, 1) != 1)
		return 3;
	struct pollfd polled = {near, POLLIN, 0};
	poll(&polled, 1, 1);
	int before = descriptors();
	for (volatile int round = 0; round < 100; round++)
		if (!sigsetjmp(start, 1)) {
			after(1000, jump);
			poll(&polled, 1, -1);
		}
	printf("%s\n", descriptors() > before + 5 ? "descriptors are missing" : "few descriptors");
	for (int round = 0; round < 20; round++) {
		after(1000, nest);
		while (poll(&polled, 1, -1) < 0) {
		}
		if (read(near, &byte, 1) != 1)
			return 4;
	}
	printf("%#x\n", polled.revents);
}
