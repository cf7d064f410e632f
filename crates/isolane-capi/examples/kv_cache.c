/*
 * Loads blocks of a cache, such as the key-value cache of a language model, from a volume: 64 blocks of 64 KiB in one
 * batch, each into its own place.
 *
 *     cc kv_cache.c $(pkg-config --cflags --libs isolane) -o kv_cache
 *     ./kv_cache 'nvme+tcp://127.0.0.1/nqn.2024-01.org.example:disk?nsid=1'
 *
 * The volume is any that isolane_volume_open() knows, of at least 64 MiB. THIS OVERWRITES IT: the program first writes
 * all blocks, so that it can check them.
 */
#define _POSIX_C_SOURCE 200809L

#include <isolane.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BLOCKS = 64, BLOCK_BYTES = 64 << 10, CACHE_BLOCKS = 1024, STRIDE = 37 };

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, isolane_error_text());
	return 1;
}

/* Executes a batch of reads or writes, and returns once all have completed. */
static int run_batch(isolane_queue *queue, int operation, char *memory, const unsigned *blocks)
{
	isolane_request requests[BLOCKS];
	isolane_completion done[BLOCKS];
	unsigned submitted = 0;
	int failed = 0, count;

	for (unsigned i = 0; i < BLOCKS; i++)
		requests[i] = (isolane_request){
			.operation = operation,
			.offset = (uint64_t)blocks[i] * BLOCK_BYTES,
			.length = BLOCK_BYTES,
			.buffer = memory + (size_t)i * BLOCK_BYTES,
			.user_data = i,
		};
	while (submitted < BLOCKS && !failed) {
		/* Submits fewer if a later one has an error, which the next call returns. */
		count = isolane_queue_submit(queue, requests + submitted, BLOCKS - submitted);
		if (count < 0)
			failed = fail("cannot submit");
		else
			submitted += (unsigned)count;
	}
	/* Submitted requests use the memory until they complete, also if another one has an error. */
	count = isolane_queue_wait(queue, done, BLOCKS, submitted, -1);
	if (count < 0)
		return fail("cannot wait");
	for (int i = 0; i < count; i++) {
		if (done[i].error != 0) {
			fprintf(stderr, "block %u: %s\n", blocks[done[i].user_data], done[i].text);
			failed = 1;
		}
	}
	return failed;
}

int main(int count, char **arguments)
{
	isolane_volume *volume;
	isolane_queue *queue;
	isolane_memory *memory;
	unsigned blocks[BLOCKS];
	struct timespec start, end;
	char *data;

	if (count != 2) {
		fprintf(stderr, "usage: %s VOLUME\n", arguments[0]);
		return 2;
	}
	volume = isolane_volume_open(arguments[1], 0);
	if (volume == NULL)
		return fail("cannot open the volume");
	queue = isolane_queue_new(volume, BLOCKS);
	memory = isolane_memory_new((size_t)BLOCKS * BLOCK_BYTES);
	if (queue == NULL || memory == NULL)
		return fail("cannot prepare requests");
	data = isolane_memory_data(memory);

	for (unsigned first = 0; first < CACHE_BLOCKS; first += BLOCKS) {
		for (unsigned i = 0; i < BLOCKS; i++) {
			blocks[i] = first + i;
			memset(data + (size_t)i * BLOCK_BYTES, (int)(first + i) % 251, BLOCK_BYTES);
		}
		if (run_batch(queue, ISOLANE_OP_WRITE, data, blocks) != 0)
			return 1;
	}

	/* The blocks of one sequence are anywhere in the cache. */
	for (unsigned i = 0; i < BLOCKS; i++)
		blocks[i] = i * STRIDE % CACHE_BLOCKS;
	clock_gettime(CLOCK_MONOTONIC, &start);
	if (run_batch(queue, ISOLANE_OP_READ, data, blocks) != 0)
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &end);
	for (unsigned i = 0; i < BLOCKS; i++) {
		if (data[(size_t)i * BLOCK_BYTES] != (char)(blocks[i] % 251)) {
			fprintf(stderr, "block %u has wrong data\n", blocks[i]);
			return 1;
		}
	}
	printf("%d blocks of %d KiB in %.2f ms\n", BLOCKS, BLOCK_BYTES >> 10,
	       (double)(end.tv_sec - start.tv_sec) * 1e3 + (double)(end.tv_nsec - start.tv_nsec) / 1e6);
	isolane_memory_free(memory);
	isolane_queue_close(queue);
	isolane_volume_close(volume);
	return 0;
}
