/*
 * Errors of volumes and queues: wrong arguments, wrong names, read-only volumes, a storage that fails, a target that
 * ends, and a forked child. The program survives each.
 *
 *     volume_errors DIRECTORY TARGET-URI
 */
#define _POSIX_C_SOURCE 200809L

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BLOCK = 4096 };
static _Alignas(4096) char block[BLOCK];

static void check_null_pointers(isolane_volume *volume, isolane_queue *queue)
{
	isolane_completion done;
	isolane_request read = {.operation = ISOLANE_OP_READ, .length = BLOCK};
	CHECK_FAILS(isolane_volume_open(NULL, 0), EINVAL, "NULL");
	CHECK_FAILS(isolane_volume_name(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_bytes(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_block_bytes(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_is_read_only(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_max_request_bytes(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_pread(NULL, block, BLOCK, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_pread(volume, NULL, BLOCK, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_pwrite(NULL, block, BLOCK, 0, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_pwrite(volume, NULL, BLOCK, 0, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_flush(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_write_zeroes(NULL, BLOCK, 0, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_volume_discard(NULL, BLOCK, 0), EINVAL, "NULL");
	CHECK_FAILS(isolane_queue_new(NULL, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_submit(NULL, &read, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_submit(queue, NULL, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_submit(queue, &read, 1), EINVAL, "buffer is NULL");
	CHECK_MINUS(isolane_queue_send(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_poll(NULL, &done, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_poll(queue, NULL, 1), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_wait(NULL, &done, 1, 1, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_wait(queue, NULL, 1, 1, 0), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_arm(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_disarm(NULL), EINVAL, "NULL");
	CHECK_MINUS(isolane_queue_fd(NULL), EINVAL, "NULL");
	CHECK_FAILS(isolane_memory_data(NULL), EINVAL, "NULL");
	isolane_volume_close(NULL);
	isolane_queue_close(NULL);
	isolane_memory_free(NULL);
}

/* Numbers of errors of opening. */
static void check_error_numbers(const char *directory, const char *target)
{
	char text[600];
	CHECK_FAILS(isolane_volume_open("mem:100T", 0), ENOMEM, "choose a smaller size");
	CHECK_FAILS(isolane_volume_open("fault:0:mem:1M", 0), EINVAL, "invalid number");
	CHECK_FAILS(isolane_volume_open("mirror:mem:1M;mem:1M", 0), EINVAL, "add bitmap=FILE");
	CHECK_FAILS(isolane_volume_open("stripe:64k:mem:1M;mem:2M", 0), EINVAL, "same size");
	CHECK_FAILS(isolane_volume_open("nvme+tcp://127.0.0.1:1/nqn.2024-01.org.example:x?via=/no/such/engine", 0), ENOENT, "engine");
	snprintf(text, sizeof text, "%s/missing/disk,size=1M", directory);
	CHECK_FAILS(isolane_volume_open(text, 0), ENOENT, "check the directory");
	snprintf(text, sizeof text, "%.*sx?nsid=1", (int)(strchr(target, '?') - target), target);
	CHECK_FAILS(isolane_volume_open(text, 0), ENOENT, "the subsystem does not exist");
	snprintf(text, sizeof text, "%s/locked,size=1M", directory);
	isolane_volume *volume = isolane_volume_open(text, 0);
	CHECK(volume != NULL);
	CHECK_FAILS(isolane_volume_open(text, 0), EBUSY, "this process has it open already");
	isolane_volume_close(volume);
	snprintf(text, sizeof text, "%s/locked,size=2M", directory);
	CHECK_FAILS(isolane_volume_open(text, 0), EINVAL, "omit size=");
	const char *volumes[] = {"mem:1M", target};
	struct rlimit old, limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
	for (int i = 0; i < 2; i++) {
		/* The lowest limits leave no descriptor, and later ones not enough. */
		for (limit = old, limit.rlim_cur = 3; setrlimit(RLIMIT_NOFILE, &limit) == 0; limit.rlim_cur++) {
			volume = isolane_volume_open(volumes[i], 0);
			if (volume != NULL)
				break;
			CHECK(errno == EMFILE && limit.rlim_cur < 64);
		}
		CHECK(volume != NULL && limit.rlim_cur > 3 && setrlimit(RLIMIT_NOFILE, &old) == 0);
		isolane_volume_close(volume);
	}
}

static void check_names(const char *directory)
{
	char path[512];
	CHECK_FAILS(isolane_volume_open("", 0), EINVAL, "empty");
	CHECK_FAILS(isolane_volume_open("\xff\xfe", 0), EINVAL, "not UTF-8");
	CHECK_FAILS(isolane_volume_open("mem:1G", 2), EINVAL, "ISOLANE_READ_ONLY");
	CHECK_FAILS(isolane_volume_open("mem:1", 0), EINVAL, "not a multiple");
	CHECK_FAILS(isolane_volume_open("mem:1M,nsid=3", 0), EINVAL, "remove nsid");
	CHECK_FAILS(isolane_volume_open("raid5:a;b", 0), EINVAL, "unknown kind \"raid5\"");
	CHECK_FAILS(isolane_volume_open("mem:16000000T", 0), ENOMEM, "choose a smaller size");
	CHECK_FAILS(isolane_volume_open("nvme+tcp://", 0), EINVAL, "names no host");
	CHECK_FAILS(isolane_volume_open("nvme+tcp://h/nqn?nsid=x", 0), EINVAL, "nqn");
	CHECK_FAILS(isolane_volume_open("nvme+tcp://127.0.0.1:1,depth=3", 0), EINVAL, "use keep-alive=, reconnect=");
	CHECK_FAILS(isolane_volume_open("nvme+tcp://127.0.0.1:1,reconnect=3", 0), EINVAL, "invalid duration");
	CHECK_FAILS(isolane_volume_open("nvme+tcp://127.0.0.1:1", 0), ECONNREFUSED, "is a target listening there?");
	CHECK_FAILS(isolane_volume_open("rbd:pool/image,conf=/no/such/file", 0), EIO, "rbd:pool/image");
	snprintf(path, sizeof path, "%s/missing", directory);
	CHECK_FAILS(isolane_volume_open(path, 0), ENOENT, "add size=10G");
	CHECK_FAILS(isolane_volume_open(directory, 0), EINVAL, "is a directory");
}

static void check_ranges(isolane_volume *volume, isolane_queue *queue)
{
	int64_t size = isolane_volume_bytes(volume);
	CHECK_MINUS(isolane_volume_pread(volume, block, 100, 0), EINVAL, "length 100 is not a multiple of the block size");
	CHECK_MINUS(isolane_volume_pread(volume, block, BLOCK, 1), EINVAL, "offset 1 is not a multiple of the block size");
	CHECK_MINUS(isolane_volume_pread(volume, block, BLOCK, size), EINVAL, "end beyond the volume");
	CHECK_MINUS(isolane_volume_pread(volume, block, BLOCK, UINT64_MAX - 4095), EINVAL, "end beyond the volume");
	CHECK_MINUS(isolane_volume_pread(volume, block, SIZE_MAX, 0), EINVAL, "SSIZE_MAX");
	CHECK_MINUS(isolane_volume_pwrite(volume, block, 1, 0, 0), EINVAL, "not a multiple");
	CHECK_MINUS(isolane_volume_pwrite(volume, block, BLOCK, size, 0), EINVAL, "end beyond the volume");
	CHECK_MINUS(isolane_volume_pwrite(volume, block, BLOCK, 0, 2), EINVAL, "ISOLANE_DURABLE");
	CHECK_MINUS(isolane_volume_write_zeroes(volume, 1, 0, 0), EINVAL, "not a multiple");
	CHECK_MINUS(isolane_volume_write_zeroes(volume, BLOCK, size, 0), EINVAL, "end beyond the volume");
	CHECK_MINUS(isolane_volume_write_zeroes(volume, BLOCK, 0, -1), EINVAL, "ISOLANE_DURABLE");
	CHECK_MINUS(isolane_volume_discard(volume, BLOCK, 7), EINVAL, "not a multiple");
	CHECK_MINUS(isolane_volume_discard(volume, UINT64_MAX - 4095, BLOCK), EINVAL, "end beyond the volume");
	isolane_request wrong[] = {
		{.operation = 0, .length = BLOCK, .buffer = block},
		{.operation = ISOLANE_OP_READ, .flags = ISOLANE_DURABLE, .length = BLOCK, .buffer = block},
		{.operation = ISOLANE_OP_WRITE, .flags = 2, .length = BLOCK, .buffer = block},
		{.operation = ISOLANE_OP_READ, .length = 0, .buffer = block},
		{.operation = ISOLANE_OP_READ, .length = BLOCK + 1, .buffer = block},
		{.operation = ISOLANE_OP_WRITE, .offset = 1, .length = BLOCK, .buffer = block},
		{.operation = ISOLANE_OP_READ, .offset = size, .length = BLOCK, .buffer = block},
		{.operation = ISOLANE_OP_READ, .length = (32 << 20) + BLOCK, .buffer = block},
		{.operation = ISOLANE_OP_DISCARD, .offset = size, .length = BLOCK},
	};
	const char *texts[] = {"unknown operation 0", "ISOLANE_DURABLE for a write", "ISOLANE_DURABLE for a write", "length is 0",
	                       "not a multiple", "not a multiple", "end beyond", "exceed the maximum", "end beyond"};
	isolane_completion done;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		/* One error alone, and after a valid request, which is submitted. */
		isolane_request two[] = {{.operation = ISOLANE_OP_FLUSH, .user_data = i}, wrong[i]};
		CHECK_MINUS(isolane_queue_submit(queue, &wrong[i], 1), EINVAL, texts[i]);
		CHECK(isolane_queue_submit(queue, two, 2) == 1);
		CHECK(isolane_queue_wait(queue, &done, 1, 1, -1) == 1 && done.error == 0 && done.user_data == i);
	}
	CHECK(isolane_queue_submit(queue, wrong, 0) == 0);
	CHECK_MINUS(isolane_queue_submit(queue, wrong, SIZE_MAX), EINVAL, "SSIZE_MAX");
	CHECK_MINUS(isolane_queue_wait(queue, &done, 1, 2, 0), EINVAL, "minimum exceeds the capacity");
	CHECK_MINUS(isolane_queue_poll(queue, &done, SIZE_MAX), EINVAL, "SSIZE_MAX");
	CHECK_FAILS(isolane_queue_new(volume, 0), EINVAL, "pass 1 to 4096");
	CHECK_FAILS(isolane_queue_new(volume, 4097), EINVAL, "pass 1 to 4096");
	CHECK_FAILS(isolane_memory_new(0), EINVAL, "invalid size");
	CHECK_FAILS(isolane_memory_new(SIZE_MAX), EINVAL, "invalid size");
	CHECK_FAILS(isolane_memory_new(SIZE_MAX / 4), ENOMEM, "request less");
}

static void check_read_only(const char *uri, int flags)
{
	isolane_volume *volume = isolane_volume_open(uri, flags);
	isolane_queue *queue = isolane_queue_new(volume, 1);
	isolane_request write = {.operation = ISOLANE_OP_WRITE, .length = BLOCK, .buffer = block};
	CHECK(queue != NULL && isolane_volume_is_read_only(volume) == 1);
	CHECK(isolane_volume_pread(volume, block, BLOCK, 0) == BLOCK && isolane_volume_flush(volume) == 0);
	CHECK_MINUS(isolane_volume_pwrite(volume, block, BLOCK, 0, 0), EROFS, "read-only");
	CHECK_MINUS(isolane_volume_write_zeroes(volume, BLOCK, 0, 0), EROFS, "read-only");
	CHECK_MINUS(isolane_volume_discard(volume, BLOCK, 0), EROFS, "read-only");
	CHECK_MINUS(isolane_queue_submit(queue, &write, 1), EROFS, "read-only");
	isolane_queue_close(queue);
	isolane_volume_close(volume);
}

/* A completion has the error of its request. */
static void check_failed_requests(void)
{
	isolane_volume *volume = isolane_volume_open("fault:1:mem:1M,on=write", 0);
	isolane_queue *queue = isolane_queue_new(volume, 2);
	isolane_completion done[2];
	isolane_request requests[] = {
		{.operation = ISOLANE_OP_WRITE, .length = BLOCK, .buffer = block, .user_data = 1},
		{.operation = ISOLANE_OP_READ, .offset = BLOCK, .length = BLOCK, .buffer = block, .user_data = 2},
	};
	CHECK(queue != NULL);
	CHECK_MINUS(isolane_volume_pwrite(volume, block, BLOCK, 0, 0), EIO, "write failed");
	CHECK(isolane_queue_submit(queue, requests, 2) == 2 && isolane_queue_wait(queue, done, 2, 2, -1) == 2);
	int write = done[0].user_data == 1 ? 0 : 1;
	CHECK(done[write].error == EIO && strstr(done[write].text, "write failed") != NULL);
	CHECK(done[1 - write].error == 0 && done[1 - write].text == NULL);
	isolane_queue_close(queue);
	isolane_volume_close(volume);
}

/* A discard and zeroes of nothing complete without a flush. */
static void check_empty_ranges(void)
{
	isolane_volume *volume = isolane_volume_open("fault:1:mem:1M,on=flush", 0);
	isolane_queue *queue = isolane_queue_new(volume, 2);
	isolane_completion done[2];
	isolane_request requests[] = {
		{.operation = ISOLANE_OP_DISCARD, .user_data = 1},
		{.operation = ISOLANE_OP_WRITE_ZEROES, .flags = ISOLANE_DURABLE, .user_data = 2},
	};
	CHECK(queue != NULL);
	CHECK_MINUS(isolane_volume_flush(volume), EIO, "failed");
	CHECK(isolane_volume_discard(volume, 0, 0) == 0 && isolane_volume_write_zeroes(volume, 0, 0, 0) == 0);
	CHECK(isolane_queue_submit(queue, requests, 2) == 2 && isolane_queue_arm(queue) == 1);
	CHECK(isolane_queue_disarm(queue) == 0 && isolane_queue_wait(queue, done, 2, 2, -1) == 2);
	CHECK(done[0].error == 0 && done[1].error == 0 && done[0].user_data + done[1].user_data == 3);
	CHECK(isolane_queue_submit(queue, requests, 2) == 2);
	isolane_queue_close(queue);
	isolane_volume_close(volume);
}

/* Completions that are not taken: the queue is full, and other callers continue. */
static void check_full_queue(isolane_volume *volume)
{
	isolane_queue *queue = isolane_queue_new(volume, 8);
	isolane_request requests[10];
	isolane_completion done[10];
	for (unsigned i = 0; i < 10; i++)
		requests[i] = (isolane_request){.operation = ISOLANE_OP_READ, .length = BLOCK, .buffer = block, .user_data = i};
	CHECK(isolane_queue_submit(queue, requests, 10) == 8);
	CHECK_MINUS(isolane_queue_submit(queue, requests + 8, 2), EAGAIN, "take completions");
	CHECK(isolane_queue_send(queue) == 0);
	CHECK(isolane_volume_pread(volume, block, BLOCK, 0) == BLOCK);
	CHECK(isolane_queue_wait(queue, done, 10, 8, -1) == 8);
	CHECK(isolane_queue_submit(queue, requests + 8, 2) == 2);
	/* A timeout, and less than the minimum. */
	CHECK(isolane_queue_wait(queue, done, 10, 10, 60000000000) == 2);
	isolane_queue_close(queue);
}

/* A child of fork() cannot use the parent's volume, and can open another. */
static void check_fork(isolane_volume *volume, isolane_queue *queue)
{
	isolane_completion done;
	isolane_request flush = {.operation = ISOLANE_OP_FLUSH};
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK_MINUS(isolane_volume_pread(volume, block, BLOCK, 0), ECONNABORTED, "open it again");
		CHECK_MINUS(isolane_volume_flush(volume), ECONNABORTED, "open it again");
		CHECK_FAILS(isolane_queue_new(volume, 1), ECONNABORTED, "open it again");
		CHECK_MINUS(isolane_queue_submit(queue, &flush, 1), ECONNABORTED, "open it again");
		CHECK_MINUS(isolane_queue_wait(queue, &done, 1, 1, -1), ECONNABORTED, "open it again");
		CHECK_MINUS(isolane_queue_arm(queue), ECONNABORTED, "open it again");
		isolane_queue_close(queue);
		isolane_volume_close(volume);
		volume = isolane_volume_open("mem:1M", 0);
		CHECK(isolane_volume_pread(volume, block, BLOCK, 0) == BLOCK);
		isolane_volume_close(volume);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(isolane_volume_pread(volume, block, BLOCK, 0) == BLOCK);
}

/* The test that started this program stops the target once it reads a line. */
static void check_lost_target(const char *target)
{
	char uri[512];
	isolane_completion done;
	isolane_request read = {.operation = ISOLANE_OP_READ, .length = BLOCK, .buffer = block, .user_data = 5};
	snprintf(uri, sizeof uri, "%s,reconnect=1s", target);
	isolane_volume *volume = isolane_volume_open(uri, 0);
	isolane_queue *queue = isolane_queue_new(volume, 1);
	CHECK(queue != NULL && isolane_volume_pread(volume, block, BLOCK, 0) == BLOCK);
	printf("stop the target\n");
	fflush(stdout);
	while (isolane_volume_pread(volume, block, BLOCK, 0) == BLOCK)
		;
	CHECK(errno == ENOTCONN && strstr(isolane_error_text(), "isolane_volume_pread: ") != NULL);
	CHECK(isolane_queue_submit(queue, &read, 1) == 1 && isolane_queue_wait(queue, &done, 1, 1, -1) == 1);
	CHECK((done.error == ENOTCONN || done.error == ECONNABORTED) && strlen(done.text) > 10 && done.user_data == 5);
	isolane_queue_close(queue);
	isolane_volume_close(volume);
}

int main(int argc, char **argv)
{
	char file[512], read_only[512];
	CHECK(argc == 3);
	snprintf(file, sizeof file, "%s/disk,size=64M", argv[1]);
	snprintf(read_only, sizeof read_only, "%s/disk,ro", argv[1]);
	check_names(argv[1]);
	check_error_numbers(argv[1], argv[2]);
	const char *uris[] = {file, argv[2], "stripe:64k:mem:32M;mem:32M"};
	for (int i = 0; i < 3; i++) {
		isolane_volume *volume = isolane_volume_open(uris[i], 0);
		isolane_queue *queue = isolane_queue_new(volume, 4);
		CHECK(queue != NULL);
		check_null_pointers(volume, queue);
		check_ranges(volume, queue);
		check_full_queue(volume);
		check_fork(volume, queue);
		isolane_queue_close(queue);
		isolane_volume_close(volume);
	}
	check_read_only(read_only, 0);
	check_read_only(file, ISOLANE_READ_ONLY);
	check_read_only(argv[2], ISOLANE_READ_ONLY);
	check_read_only("mem:1M,ro", 0);
	check_failed_requests();
	check_empty_ranges();
	check_lost_target(argv[2]);
	return 0;
}
