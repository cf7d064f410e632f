/* preload_select.c: `select` with descriptors above and below its sets, on a connection that the engine has.
 *
 * Prints the same with and without `isolane engine run`. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <ucontext.h>
#include <unistd.h>

#define check(condition) do { if (!(condition)) { perror(#condition); exit(1); } } while (0)

static struct { fd_set set; unsigned char after[4096]; } sets;
static ucontext_t outer, inner;

static void fill(int fd)
{
	FD_ZERO(&sets.set);
	FD_SET(fd, &sets.set);
	memset(sets.after, 0xff, sizeof sets.after);
}

static void call_select(void)
{
	struct timeval none = { 0, 0 };
	select(0, NULL, NULL, NULL, &none);
}

/* Bytes of the stack that a call without connections uses. */
static size_t used_stack(void)
{
	static unsigned char stack[64 << 10];
	size_t unused = 0;
	call_select();
	memset(stack, 0x5a, sizeof stack);
	check(getcontext(&inner) == 0);
	inner.uc_stack.ss_sp = stack;
	inner.uc_stack.ss_size = sizeof stack;
	inner.uc_link = &outer;
	makecontext(&inner, call_select, 0);
	check(swapcontext(&outer, &inner) == 0);
	while (unused < sizeof stack && stack[unused] == 0x5a)
		unused++;
	return sizeof stack - unused;
}

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	struct timeval time;
	char byte;
	int listener = socket(AF_INET, SOCK_STREAM, 0), near = socket(AF_INET, SOCK_STREAM, 0), far;

	check(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0);
	check(getsockname(listener, (void *)&address, &length) == 0);
	check(connect(near, (void *)&address, length) == 0 && (far = accept(listener, NULL, NULL)) >= 0);
	check(send(near, "a", 1, 0) == 1 && recv(far, &byte, 1, 0) == 1 && send(far, "b", 1, 0) == 1);

	/* As programs from before fd_set do. The kernel reads up to the end of its own table only. */
	fill(near);
	time = (struct timeval){ 5, 0 };
	int count = select(getdtablesize(), &sets.set, NULL, NULL, &time);
	size_t intact = 0;
	for (size_t index = 0; index < sizeof sets.after; index++)
		intact += sets.after[index] == 0xff;
	printf("%d %d %zu\n", count, FD_ISSET(near, &sets.set) != 0, intact);

	/* Without data. */
	check(recv(near, &byte, 1, 0) == 1);
	fill(near);
	time = (struct timeval){ 0, 1000 };
	printf("%d", select(getdtablesize(), &sets.set, NULL, NULL, &time));
	printf(" %d\n", FD_ISSET(near, &sets.set) != 0);

	/* Bits that the call does not cover. */
	check(send(far, "c", 1, 0) == 1);
	fill(near);
	FD_SET(60, &sets.set);
	time = (struct timeval){ 5, 0 };
	printf("%d", select(near + 1, &sets.set, NULL, NULL, &time));
	printf(" %d\n", FD_ISSET(60, &sets.set) != 0);

	/* A descriptor in a larger set than those of the C library. */
	static fd_set large[2];
	check(recv(near, &byte, 1, 0) == 1);
	struct rlimit limit;
	check(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	int fd = socket(AF_INET, SOCK_STREAM, 0), high = fcntl(fd, F_DUPFD, FD_SETSIZE + 70);
	check(close(fd) == 0);
	if (high < 0)
		printf("no such descriptor: the limit is %lu\n", (unsigned long)limit.rlim_cur);
	unsigned long *words = (unsigned long *)large;
	words[near / 64] = 1ul << near % 64;
	if (high >= 0)
		words[high / 64] |= 1ul << high % 64;
	check(send(far, "d", 1, 0) == 1);
	time = (struct timeval){ 5, 0 };
	check(recv(near, &byte, 1, MSG_PEEK) == 1);
	/* A socket that is not connected has hung up. */
	printf("%d", select(2 * FD_SETSIZE, large, NULL, NULL, &time));
	printf(" %d %d\n", (int)(words[near / 64] >> near % 64 & 1), high < 0 || (words[high / 64] >> high % 64 & 1));

	printf("%d\n", used_stack() < 4096);
	return 0;
}
