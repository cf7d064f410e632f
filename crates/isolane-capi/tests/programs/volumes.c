/*
 * Reads and writes a volume of at least 48 MiB with blocking calls, and with queues.
 *
 *     volumes URI
 */
#define _POSIX_C_SOURCE 200809L

#include <poll.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { BLOCK = 4096, BATCH = 64, PART = 65536, LARGE = 33 << 20, THREADS = 4 };

static void fill(unsigned char *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (unsigned char)(seed + i / 512 * 7 + i % 251);
}

static int is_filled(const unsigned char *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != (unsigned char)(seed + i / 512 * 7 + i % 251))
			return 0;
	return 1;
}

static int is_zero(const unsigned char *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != 0)
			return 0;
	return 1;
}

static void check_info(isolane_volume *volume)
{
	int block = isolane_volume_block_bytes(volume);
	CHECK(isolane_volume_bytes(volume) >= 48 << 20);
	CHECK(block >= 512 && (block & (block - 1)) == 0 && isolane_volume_bytes(volume) % block == 0);
	CHECK(isolane_volume_is_read_only(volume) == 0);
	CHECK(isolane_volume_max_request_bytes(volume) >= 1 << 20);
	CHECK(strlen(isolane_volume_name(volume)) > 3);
}

static void check_blocking(isolane_volume *volume)
{
	unsigned char *written = malloc(LARGE + 1), *got = malloc(LARGE + 1);
	CHECK(written != NULL && got != NULL);
	/* Longer than a request, and not aligned. */
	fill(written + 1, LARGE, 3);
	CHECK(isolane_volume_pwrite(volume, written + 1, LARGE, BLOCK, 0) == LARGE);
	CHECK(isolane_volume_pread(volume, got + 1, LARGE, BLOCK) == LARGE);
	CHECK(memcmp(written + 1, got + 1, LARGE) == 0);
	fill(written, PART, 4);
	CHECK(isolane_volume_pwrite(volume, written, PART, 0, ISOLANE_DURABLE) == PART);
	CHECK(isolane_volume_write_zeroes(volume, BLOCK, BLOCK, 0) == 0);
	CHECK(isolane_volume_write_zeroes(volume, BLOCK, 3 * BLOCK, ISOLANE_DURABLE) == 0);
	CHECK(isolane_volume_discard(volume, BLOCK, 5 * BLOCK) == 0);
	CHECK(isolane_volume_flush(volume) == 0);
	CHECK(isolane_volume_pread(volume, got, PART, 0) == PART);
	CHECK(is_zero(got + BLOCK, BLOCK) && is_zero(got + 3 * BLOCK, BLOCK));
	CHECK(memcmp(written, got, BLOCK) == 0 && memcmp(written + 2 * BLOCK, got + 2 * BLOCK, BLOCK) == 0);
	CHECK(isolane_volume_pread(volume, got, 0, 0) == 0 && isolane_volume_pwrite(volume, got, 0, 0, 0) == 0);
	CHECK(isolane_volume_discard(volume, 0, 0) == 0 && isolane_volume_write_zeroes(volume, 0, 0, 0) == 0);
	free(written), free(got);
}

/* Prepares requests for BATCH parts of `data`. */
static void prepare(isolane_request *requests, int operation, unsigned char *data, uint64_t offset)
{
	for (unsigned i = 0; i < BATCH; i++)
		requests[i] = (isolane_request){.operation = operation, .offset = offset + i * PART, .length = PART,
		                                .buffer = data + i * PART, .user_data = 1000 + i};
}

/* Takes all completions: each request has one. */
static void take(isolane_queue *queue, unsigned count)
{
	isolane_completion done[BATCH];
	unsigned char seen[BATCH] = {0};
	CHECK(isolane_queue_wait(queue, done, BATCH, count, 60000000000) == (int)count);
	for (unsigned i = 0; i < count; i++) {
		if (done[i].error != 0)
			fprintf(stderr, "%s\n", done[i].text);
		CHECK(done[i].error == 0 && done[i].text == NULL);
		CHECK(done[i].user_data >= 1000 && done[i].user_data < 1000 + BATCH && !seen[done[i].user_data - 1000]++);
	}
	CHECK(isolane_queue_wait(queue, done, BATCH, 1, -1) == 0);
}

/* Writes and reads a batch, in memory that can be registered, and not aligned. */
static void check_batches(isolane_volume *volume, uint64_t offset, unsigned seed)
{
	isolane_queue *queue = isolane_queue_new(volume, BATCH);
	isolane_memory *memory = isolane_memory_new(BATCH * PART);
	unsigned char *registered = isolane_memory_data(memory), *other = malloc(BATCH * PART + 16);
	isolane_request requests[BATCH];
	CHECK(queue != NULL && registered != NULL && other != NULL && is_zero(registered, BATCH * PART));
	unsigned char *parts[] = {registered, other + 16, other + 1};
	for (unsigned i = 0; i < 3; i++) {
		fill(parts[i], BATCH * PART, seed + i);
		prepare(requests, ISOLANE_OP_WRITE, parts[i], offset);
		requests[7].flags = ISOLANE_DURABLE;
		CHECK(isolane_queue_submit(queue, requests, BATCH) == BATCH);
		take(queue, BATCH);
		memset(parts[i], 0, BATCH * PART);
		prepare(requests, ISOLANE_OP_READ, parts[i], offset);
		CHECK(isolane_queue_submit(queue, requests, BATCH) == BATCH);
		take(queue, BATCH);
		CHECK(is_filled(parts[i], BATCH * PART, seed + i));
	}
	requests[0] = (isolane_request){.operation = ISOLANE_OP_WRITE_ZEROES, .offset = offset, .length = PART, .user_data = 1000};
	requests[1] = (isolane_request){.operation = ISOLANE_OP_DISCARD, .offset = offset + PART, .length = PART, .user_data = 1001};
	requests[2] = (isolane_request){.operation = ISOLANE_OP_FLUSH, .user_data = 1002};
	CHECK(isolane_queue_submit(queue, requests, 3) == 3);
	take(queue, 3);
	prepare(requests, ISOLANE_OP_READ, registered, offset);
	CHECK(isolane_queue_submit(queue, requests, 1) == 1);
	take(queue, 1);
	CHECK(is_zero(registered, PART));
	/* The library keeps the memory until the requests have completed. */
	prepare(requests, ISOLANE_OP_READ, registered, offset);
	CHECK(isolane_queue_submit(queue, requests, BATCH) == BATCH && isolane_queue_send(queue) == 0);
	isolane_memory_free(memory);
	take(queue, BATCH);
	isolane_queue_close(queue);
	free(other);
}

/* A full queue accepts requests again once completions are taken; its descriptor reports them. */
static void check_event_loop(isolane_volume *volume)
{
	enum { DEPTH = 4, ROUNDS = 200 };
	isolane_queue *queue = isolane_queue_new(volume, DEPTH);
	static unsigned char blocks[DEPTH][BLOCK];
	isolane_completion done[DEPTH];
	isolane_request request = {.operation = ISOLANE_OP_READ, .length = BLOCK};
	struct pollfd loop = {.fd = isolane_queue_fd(queue), .events = POLLIN};
	unsigned submitted = 0, completed = 0;
	CHECK(queue != NULL && loop.fd >= 0);
	CHECK(isolane_queue_poll(queue, done, DEPTH) == 0 && isolane_queue_wait(queue, done, DEPTH, 0, -1) == 0);
	while (completed < ROUNDS) {
		while (submitted < ROUNDS && submitted - completed < DEPTH) {
			request.offset = submitted * BLOCK, request.user_data = submitted;
			request.buffer = blocks[submitted % DEPTH];
			CHECK(isolane_queue_submit(queue, &request, 1) == 1);
			submitted++;
		}
		if (submitted - completed == DEPTH)
			CHECK_MINUS(isolane_queue_submit(queue, &request, 1), EAGAIN, "all 4 requests are outstanding");
		int pending = isolane_queue_arm(queue);
		CHECK(pending == 0 || pending == 1);
		if (!pending)
			CHECK(poll(&loop, 1, 60000) == 1);
		CHECK(isolane_queue_disarm(queue) == 0);
		/* A notification can be early, but not if completions are pending. */
		int count = isolane_queue_poll(queue, done, DEPTH);
		CHECK(count >= pending);
		for (int i = 0; i < count; i++)
			CHECK(done[i].error == 0 && done[i].user_data < submitted);
		completed += count;
	}
	/* Closing waits for the requests, which use `blocks`, and leaves no event at the descriptor. */
	struct pollfd copy = {.fd = dup(loop.fd), .events = POLLIN};
	CHECK(copy.fd >= 0 && isolane_queue_submit(queue, &request, 1) == 1);
	if (isolane_queue_arm(queue) == 0)
		CHECK(poll(&loop, 1, 60000) == 1);
	CHECK(isolane_queue_submit(queue, &request, 1) == 1);
	isolane_queue_close(queue);
	CHECK(poll(&copy, 1, 0) == 0);
	close(copy.fd);
}

/* Requests are sent by a poll that finds a completion, and by an arm. */
static void check_sending(isolane_volume *volume)
{
	enum { ROUNDS = 64 };
	isolane_queue *queue = isolane_queue_new(volume, 3);
	static unsigned char blocks[3][BLOCK], got[BLOCK];
	isolane_completion done[3];
	struct pollfd loop = {.fd = isolane_queue_fd(queue), .events = POLLIN};
	isolane_request requests[] = {
		{.operation = ISOLANE_OP_READ, .length = BLOCK, .buffer = blocks[0]},
		{.operation = ISOLANE_OP_READ, .offset = BLOCK, .length = BLOCK, .buffer = blocks[1]},
		{.operation = ISOLANE_OP_WRITE, .offset = 2 * BLOCK, .length = BLOCK, .buffer = blocks[2]},
	};
	for (unsigned char round = 1; round <= ROUNDS; round++) {
		int arms = round % 2;
		CHECK(isolane_queue_submit(queue, requests, 2) == 2 && isolane_queue_wait(queue, done, 1, 1, -1) == 1);
		while (isolane_queue_arm(queue) == 0)
			CHECK(poll(&loop, 1, 60000) == 1);
		CHECK(isolane_queue_disarm(queue) == 0);
		/* One completion is pending. */
		memset(blocks[2], round, BLOCK);
		CHECK(isolane_queue_submit(queue, requests + 2, 1) == 1);
		if (arms)
			CHECK(isolane_queue_arm(queue) == 1);
		else
			CHECK(isolane_queue_poll(queue, done, 1) == 1);
		time_t start = time(NULL);
		do {
			CHECK(isolane_volume_pread(volume, got, BLOCK, 2 * BLOCK) == BLOCK && time(NULL) - start < 60);
		} while (got[0] != round);
		CHECK(isolane_queue_wait(queue, done, 3, 1 + arms, -1) == 1 + arms);
	}
	isolane_queue_close(queue);
}

static void *thread(void *volume)
{
	static _Atomic unsigned next;
	unsigned id = next++;
	unsigned char block[BLOCK], got[BLOCK];
	check_batches(volume, (uint64_t)id * BATCH * PART, id * 10);
	for (unsigned i = 0; i < 40; i++) {
		uint64_t offset = (uint64_t)id * BATCH * PART + i * BLOCK;
		fill(block, BLOCK, id + i);
		CHECK(isolane_volume_pwrite(volume, block, BLOCK, offset, 0) == BLOCK);
		CHECK(isolane_volume_pread(volume, got, BLOCK, offset) == BLOCK && memcmp(block, got, BLOCK) == 0);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	isolane_completion done;
	unsigned char block[BLOCK];
	CHECK(argc == 2);
	isolane_volume *volume = isolane_volume_open(argv[1], 0);
	CHECK(volume != NULL);
	check_info(volume);
	check_blocking(volume);
	check_batches(volume, 3 * PART, 11);
	check_event_loop(volume);
	check_sending(volume);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, thread, volume) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	/* The last queue keeps the volume open. */
	isolane_queue *queue = isolane_queue_new(volume, 1);
	isolane_request request = {.operation = ISOLANE_OP_READ, .length = BLOCK, .buffer = block, .user_data = 9};
	isolane_volume_close(volume);
	CHECK(isolane_queue_submit(queue, &request, 1) == 1);
	CHECK(isolane_queue_wait(queue, &done, 1, 1, -1) == 1 && done.error == 0 && done.user_data == 9);
	isolane_queue_close(queue);
	return 0;
}
