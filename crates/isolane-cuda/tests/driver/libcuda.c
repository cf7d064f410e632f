/*
 * A driver library for tests. The memory of its GPUs cannot be accessed by the CPU, and copies are executed when a
 * stream is waited for, in order. A call that breaks a rule of the interface ends the program with a message.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101,
	NO_DEVICE = 100, INVALID_CONTEXT = 201, ILLEGAL_ADDRESS = 700, CONTEXT_IS_DESTROYED = 709,
};
enum { GPUS = 2, ALLOCATIONS = 256, COPIES = 4096, DEPTH = 16, FUNCTIONS = 32 };

typedef struct context { int gpu, users, is_destroyed; uint64_t id; } *CUcontext;
/* A stream is lost with its context. */
typedef struct stream { CUcontext context; int is_live, is_lost; struct stream *next; } *CUstream;

/* Memory of a GPU, or of the host if `shadow` is the memory itself. */
struct allocation { uint64_t start; size_t len; char *shadow; CUcontext context; int is_host, is_managed, gpu; };
/* Only the memory of the host must not change before a copy is executed: `sum` is not 0 if that is the source. */
struct copy { CUstream stream; char *to, *from; size_t len; uint64_t sum; };
struct function { const char *name; int calls, failures_at, failures, code; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation allocations[ALLOCATIONS];
static struct copy copies[COPIES];
static int copies_count, is_initialized, streams, has_unpinned;
static CUstream first_stream;
static struct context primary[GPUS] = { { 0, 0, 0, 1 }, { 1, 0, 0, 2 } }, other = { 0, 0, 0, 3 };
static struct function functions[FUNCTIONS];
static _Thread_local CUcontext current[DEPTH];
static _Thread_local int depth;

#define RULE(condition, text) do { if (!(condition)) broken(__func__, text); } while (0)
#define ENTER() int failure = enter(__func__); if (failure) return failure

static void broken(const char *function, const char *rule)
{
	fprintf(stderr, "%s: %s\n", function, rule);
	abort();
}

static struct function *function_of(const char *name)
{
	for (int i = 0; i < FUNCTIONS; i++) {
		if (!functions[i].name)
			functions[i].name = name;
		if (!strcmp(functions[i].name, name))
			return &functions[i];
	}
	broken(name, "too many functions");
	return NULL;
}

/* Takes the lock. Returns an error that the test has requested, without the lock. */
static int enter(const char *name)
{
	pthread_mutex_lock(&lock);
	struct function *function = function_of(name);
	int call = function->calls++ - function->failures_at;
	if (function->failures && call >= 0 && call < function->failures) {
		pthread_mutex_unlock(&lock);
		return function->code;
	}
	if (!is_initialized && strcmp(name, "cuInit")) {
		pthread_mutex_unlock(&lock);
		return NOT_INITIALIZED;
	}
	return SUCCESS;
}

static int leave(int result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

static CUcontext now(void)
{
	return depth ? current[depth - 1] : NULL;
}

static struct allocation *find(uint64_t address)
{
	for (int i = 0; i < ALLOCATIONS; i++)
		if (allocations[i].len && address - allocations[i].start < allocations[i].len)
			return &allocations[i];
	return NULL;
}

static struct allocation *add(uint64_t start, size_t len, char *shadow, int is_host)
{
	for (int i = 0; i < ALLOCATIONS; i++) {
		if (allocations[i].len)
			continue;
		allocations[i] = (struct allocation) { start, len, shadow, now(), is_host, 0, now() ? now()->gpu : 0 };
		return &allocations[i];
	}
	broken("cuMemAlloc", "too many allocations");
	return NULL;
}

static void *map(size_t len, int protection)
{
	void *start = mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return start == MAP_FAILED ? NULL : start;
}

static uint64_t sum_of(const char *bytes, size_t len)
{
	uint64_t sum = 0xcbf29ce484222325;
	for (size_t i = 0; i < len; i++)
		sum = (sum ^ (unsigned char)bytes[i]) * 0x100000001b3;
	return sum | 1;
}

/* Executes the copies of a stream. */
static void run(CUstream stream)
{
	int kept = 0;
	for (int i = 0; i < copies_count; i++) {
		struct copy copy = copies[i];
		if (copy.stream != stream) {
			copies[kept++] = copy;
			continue;
		}
		RULE(!copy.sum || sum_of(copy.from, copy.len) == copy.sum, "the source of a copy was changed before it was executed");
		memcpy(copy.to, copy.from, copy.len);
	}
	copies_count = kept;
}

int cuInit(unsigned flags)
{
	ENTER();
	is_initialized = 1;
	return leave(flags ? INVALID_VALUE : SUCCESS);
}

int cuGetErrorName(int code, const char **name)
{
	switch (code) {
	case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
	case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
	case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
	case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
	case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
	case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
	case CONTEXT_IS_DESTROYED: *name = "CUDA_ERROR_CONTEXT_IS_DESTROYED"; break;
	default: *name = NULL; return INVALID_VALUE;
	}
	return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
	ENTER();
	*count = GPUS;
	return leave(SUCCESS);
}

int cuDeviceGet(int *gpu, int index)
{
	ENTER();
	*gpu = index;
	return leave(index >= 0 && index < GPUS ? SUCCESS : INVALID_DEVICE);
}

int cuDeviceGetName(char *name, int len, int gpu)
{
	ENTER();
	snprintf(name, len, "test GPU %d", gpu);
	return leave(SUCCESS);
}

int cuDevicePrimaryCtxRetain(CUcontext *context, int gpu)
{
	ENTER();
	primary[gpu].users++;
	primary[gpu].is_destroyed = 0;
	*context = &primary[gpu];
	return leave(SUCCESS);
}

int cuDevicePrimaryCtxRelease_v2(int gpu)
{
	ENTER();
	RULE(primary[gpu].users > 0, "the context is released more often than it was retained");
	primary[gpu].users--;
	return leave(SUCCESS);
}

int cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER();
	RULE(depth < DEPTH, "contexts are pushed and not popped");
	if (context != &other && context != &primary[0] && context != &primary[1])
		return leave(INVALID_CONTEXT);
	if (context->is_destroyed)
		return leave(CONTEXT_IS_DESTROYED);
	current[depth++] = context;
	return leave(SUCCESS);
}

int cuCtxGetId(CUcontext context, uint64_t *id)
{
	ENTER();
	*id = context->id;
	return leave(context->is_destroyed ? CONTEXT_IS_DESTROYED : SUCCESS);
}

int cuCtxPopCurrent_v2(CUcontext *context)
{
	/* Also after an error, so that tests can continue. */
	int failure = enter(__func__);
	RULE(depth > 0, "a context is popped that was not pushed");
	*context = current[--depth];
	return failure ? failure : leave(SUCCESS);
}

int cuMemAlloc_v2(uint64_t *address, size_t len)
{
	ENTER();
	if (!now() || !len)
		return leave(now() ? INVALID_VALUE : INVALID_CONTEXT);
	char *shadow = map(len, PROT_READ | PROT_WRITE), *start = map(len, PROT_NONE);
	if (!shadow || !start)
		return leave(OUT_OF_MEMORY);
	*address = (uintptr_t)start;
	add(*address, len, shadow, 0);
	return leave(SUCCESS);
}

int cuMemFree_v2(uint64_t address)
{
	ENTER();
	struct allocation *found = find(address);
	if (!found || found->start != address || found->is_host)
		return leave(INVALID_VALUE);
	for (int i = 0; i < copies_count; i++) {
		RULE(copies[i].to < found->shadow || copies[i].to >= found->shadow + found->len, "memory of a copy is freed");
		RULE(copies[i].from < found->shadow || copies[i].from >= found->shadow + found->len, "memory of a copy is freed");
	}
	/* Neither mapping is reused: another one must not be at the address. */
	found->len = 0;
	return leave(SUCCESS);
}

int cuMemGetAddressRange_v2(uint64_t *start, size_t *len, uint64_t address)
{
	ENTER();
	struct allocation *found = find(address);
	if (!now())
		return leave(INVALID_CONTEXT);
	if (!found || found->is_host)
		return leave(INVALID_VALUE);
	*start = found->start;
	*len = found->len;
	return leave(SUCCESS);
}

int cuMemHostRegister_v2(void *address, size_t len, unsigned flags)
{
	int failure = enter(__func__);
	if (failure) {
		has_unpinned = 1;
		return failure;
	}
	RULE(flags == 1, "memory of the host is not portable");
	RULE(!find((uintptr_t)address), "memory of the host is registered twice");
	if (!now())
		return leave(INVALID_CONTEXT);
	memset(address, 0xa5, len);
	add((uintptr_t)address, len, address, 1);
	return leave(SUCCESS);
}

int cuMemHostUnregister(void *address)
{
	ENTER();
	struct allocation *found = find((uintptr_t)address);
	if (!found)
		return leave(INVALID_VALUE);
	RULE(found->is_host && found->shadow == address, "memory of the host is unregistered that was not registered");
	for (int i = 0; i < copies_count; i++) {
		RULE(copies[i].to < found->shadow || copies[i].to >= found->shadow + found->len, "a buffer of a copy is freed");
		RULE(copies[i].from < found->shadow || copies[i].from >= found->shadow + found->len, "a buffer of a copy is freed");
	}
	found->len = 0;
	return leave(SUCCESS);
}

int cuStreamCreate(CUstream *stream, unsigned flags)
{
	ENTER();
	RULE(flags == 1, "the stream waits for others");
	if (!now())
		return leave(INVALID_CONTEXT);
	*stream = malloc(sizeof **stream);
	(*stream)->context = now();
	(*stream)->is_live = 1;
	(*stream)->is_lost = 0;
	(*stream)->next = first_stream;
	first_stream = *stream;
	streams++;
	return leave(SUCCESS);
}

int cuStreamDestroy_v2(CUstream stream)
{
	ENTER();
	if (stream->is_lost)
		return leave(CONTEXT_IS_DESTROYED);
	RULE(stream->is_live && stream->context == now(), "the stream is not one of the current context");
	for (int i = 0; i < copies_count; i++)
		RULE(copies[i].stream != stream, "a stream is destroyed before its copies have ended");
	stream->is_live = 0;
	streams--;
	return leave(SUCCESS);
}

int cuStreamSynchronize(CUstream stream)
{
	int failure = enter(__func__);
	if (failure) {
		/* The copies end with the error. */
		pthread_mutex_lock(&lock);
		for (int i = 0; i < copies_count; i++)
			if (copies[i].stream == stream)
				copies[i--] = copies[--copies_count];
		return leave(failure);
	}
	if (stream->is_lost)
		return leave(CONTEXT_IS_DESTROYED);
	/* The stream names its context. */
	RULE(stream->is_live, "the stream is destroyed");
	run(stream);
	return leave(SUCCESS);
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t len, CUstream stream)
{
	ENTER();
	if (stream->is_lost)
		return leave(CONTEXT_IS_DESTROYED);
	RULE(stream->is_live && stream->context == now(), "the stream is not one of the current context");
	RULE(copies_count < COPIES, "too many copies");
	struct allocation *target = find(to), *source = find(from);
	int is_to_gpu = target && !target->is_host, is_from_gpu = source && !source->is_host;
	RULE(target || source, "neither address is known");
	if (is_to_gpu == is_from_gpu)
		return leave(INVALID_VALUE);
	RULE(has_unpinned || (target && source), "the memory of the host is not registered");
	if ((target && len > target->start + target->len - to) || (source && len > source->start + source->len - from))
		return leave(INVALID_VALUE);
	char *target_bytes = target ? target->shadow + (to - target->start) : (char *)(uintptr_t)to;
	char *source_bytes = source ? source->shadow + (from - source->start) : (char *)(uintptr_t)from;
	struct copy copy = { stream, target_bytes, source_bytes, len, 0 };
	if (!is_to_gpu)
		memset(copy.to, 0xee, len);
	else
		copy.sum = sum_of(copy.from, len);
	copies[copies_count++] = copy;
	return leave(SUCCESS);
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
	ENTER();
	struct allocation *found = find(address);
	if (!found)
		return leave(INVALID_VALUE);
	switch (attribute) {
	case 1: *(CUcontext *)value = found->context; break;
	case 2: *(unsigned *)value = found->is_host ? 1 : 2; break;
	case 8: *(char *)value = found->is_managed; break;
	case 9: *(int *)value = found->gpu; break;
	default: return leave(INVALID_VALUE);
	}
	return leave(SUCCESS);
}

/* For tests. */

/* Lets `count` calls of a function fail after `after` others. */
void test_fail(const char *name, int after, int count, int code)
{
	pthread_mutex_lock(&lock);
	struct function *function = function_of(name);
	*function = (struct function) { function->name, 0, after, count, code };
	pthread_mutex_unlock(&lock);
}

/* Number of calls of a function since the last call of `test_fail`. */
int test_calls(const char *name)
{
	pthread_mutex_lock(&lock);
	return leave(function_of(name)->calls);
}

static CUcontext place_of(int place)
{
	return place == 2 ? &other : &primary[place == 3 ? 1 : place];
}

/* Destroys a context with everything in it, as a program can. The next allocation in it makes it again. */
void test_destroy(int place)
{
	pthread_mutex_lock(&lock);
	CUcontext context = place_of(place);
	context->is_destroyed = 1;
	/* The number of the next one with this handle. */
	context->id += 3;
	for (CUstream stream = first_stream; stream; stream = stream->next) {
		if (stream->context != context || !stream->is_live)
			continue;
		run(stream);
		stream->is_live = 0;
		stream->is_lost = 1;
		streams--;
	}
	for (int i = 0; i < ALLOCATIONS; i++)
		if (allocations[i].context == context)
			allocations[i].len = 0;
	pthread_mutex_unlock(&lock);
}

/* Allocates adjacent ranges with the given lengths in a context: 0, 1 for the one of a GPU, 2 for another one, 3 for none
 * on GPU 1. */
uint64_t test_allocate(const size_t *lens, const int *contexts, int count)
{
	size_t total = 0;
	for (int i = 0; i < count; i++)
		total += lens[i];
	pthread_mutex_lock(&lock);
	is_initialized = 1;
	uint64_t start = (uintptr_t)map(total, PROT_NONE), at = start;
	char *shadow = map(total, PROT_READ | PROT_WRITE);
	for (int i = 0; i < count; at += lens[i++]) {
		struct allocation *new = add(at, lens[i], shadow + (at - start), 0);
		place_of(contexts[i])->is_destroyed = 0;
		new->context = contexts[i] == 3 ? NULL : contexts[i] == 2 ? &other : &primary[contexts[i]];
		new->gpu = contexts[i] == 3 ? 1 : contexts[i] == 2 ? 0 : contexts[i];
	}
	pthread_mutex_unlock(&lock);
	return start;
}

/* Makes an allocation one that the CPU can access also. */
void test_manage(uint64_t address)
{
	pthread_mutex_lock(&lock);
	struct allocation *found = find(address);
	found->is_managed = 1;
	mprotect((void *)(uintptr_t)found->start, found->len, PROT_READ | PROT_WRITE);
	pthread_mutex_unlock(&lock);
}

/* Address of the bytes of GPU memory, null if there are none. */
void *test_bytes(uint64_t address)
{
	pthread_mutex_lock(&lock);
	struct allocation *found = find(address);
	void *bytes = found ? found->shadow + (address - found->start) : NULL;
	pthread_mutex_unlock(&lock);
	return bytes;
}

/* Number of contexts that are retained, of live streams, and of copies that are not executed. */
void test_counts(int *contexts, int *live_streams, int *pending, int *current_contexts)
{
	pthread_mutex_lock(&lock);
	*contexts = primary[0].users + primary[1].users;
	*live_streams = streams;
	*pending = copies_count;
	*current_contexts = depth;
	pthread_mutex_unlock(&lock);
}
