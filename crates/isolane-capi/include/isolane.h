/*
 * isolane.h - volumes, and TCP streams through an isolated engine.
 *
 * VOLUMES are files, block devices, memory, stripes, mirrors, Ceph RBD images, and volumes of NVMe/TCP targets. A
 * program reads and writes them with blocking calls, or many requests at a time with a queue.
 *
 *     isolane_volume *volume = isolane_volume_open("nvme+tcp://10.0.0.2", 0);
 *     char block[4096];
 *     if (volume == NULL || isolane_volume_pread(volume, block, sizeof block, 0) < 0) {
 *         fprintf(stderr, "%s\n", isolane_error_text());
 *     }
 *     isolane_volume_close(volume);
 *
 * STREAMS: `isolane engine` runs network processing on dedicated cores for the programs that attach to it. A program
 * keeps its sockets: the engine works on duplicates, and data passes through memory that both share. So a program can
 * turn a stream back into a plain socket at any time, and a stream survives a crash of the engine.
 *
 *     isolane_session *session = isolane_session_open(NULL, 0, 0);
 *     isolane_stream *stream = session ? isolane_stream_connect(session, "127.0.0.1:7", NULL) : NULL;
 *     if (stream == NULL || isolane_stream_write(stream, "hello", 5) < 0) {
 *         fprintf(stderr, "%s\n", isolane_error_text());
 *     }
 *     isolane_stream_close(stream);
 *     isolane_session_close(session);
 *
 * Link with libisolane.so (`-lisolane`, or the flags of `pkg-config isolane`), or with libisolane.a and
 * `-lgcc_s -lm -lpthread -ldl`.
 *
 * ERRORS
 *
 * On failure, a function that returns a number returns -1, and one that returns a pointer returns NULL. Then errno
 * has the reason, and isolane_error_text() names the culprit and the remedy. Every function can fail with:
 *
 *     EINVAL         an argument is wrong: a null pointer, a number out of range, or an invalid address
 *     ECONNABORTED   the session is closed: the engine exited or disconnected this program. Open another
 *                    session; isolane_stream_into_fd() recovers each stream without loss. Or the object belongs to
 *                    the parent of this process
 *     EPROTO         the engine violated the rules of the shared memory, or has another version
 *     EIO            a bug in this library, or an error without a number
 *
 * Other errors are listed with each function. Errors of the socket (ECONNRESET, EPIPE, ECONNREFUSED, EMFILE, ...)
 * are returned unchanged. No function raises SIGPIPE or fails with EINTR: a call continues after a signal handler
 * returns. A successful call can change errno. EFAULT: a system call cannot access memory of the program.
 *
 * ISOLANE_LOG=warn in the environment, or another level (error, info, debug, trace), makes the library log to stderr:
 * for example that a connection is lost, that a mirror has lost a member, or that the file of a volume was deleted.
 * Without it, the library writes nothing. It is read when the first volume or session is opened. A child of fork() does
 * not log after its parent has.
 *
 * THREADS
 *
 * Several threads can use a volume, a session, or a listener. A queue belongs to one thread at a time. A stream has a
 * read half and a write half; one thread at a time can use each half. Each function lists the halves that it uses. A
 * poller, and options while they are set, belong to one thread at a time. No other thread can use an object while it is
 * closed or turned into a descriptor, or afterwards; closing does not wake a call that waits.
 *
 * The library starts one thread for each session, and one for those streams of a session that have no poller. A volume
 * has a thread, or several: for files, for each member of some kinds, and while it reconnects or copies. The log has
 * one. They block all signals.
 *
 * A session, its streams, and its pollers belong to the process that opened the session, and end with that process; a
 * volume and its queues likewise. In a child of fork(), their use fails with ECONNABORTED, and closing them does
 * nothing. A child can open another session or volume. If another thread was opening, connecting, or closing an object
 * during fork(), its locks are held in the child forever: there, isolane_session_open() and isolane_volume_open() fail
 * with EDEADLK. If a volume with an RBD image was open, a lock of librbd can be held, and a child that opens one can wait
 * forever. exec() closes all descriptors of the library. A block device stays in use while a child has the descriptor of
 * its parent, also after the parent has closed the volume.
 *
 * Under valgrind, volumes can hang, because it does not support io_uring as the kernel does.
 *
 * LIFETIME
 *
 * Release each object with its ..._close() or ..._free() function, in any order: a session that is closed while it
 * has streams ends with the last of them, and a volume with its last queue. These functions ignore NULL.
 *
 * TIMES are in nanoseconds; a negative time means no limit, and 0 means not to wait.
 */
#ifndef ISOLANE_H
#define ISOLANE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header. */
#define ISOLANE_VERSION "0.1.0"

typedef struct isolane_volume isolane_volume;
typedef struct isolane_queue isolane_queue;
typedef struct isolane_memory isolane_memory;
typedef struct isolane_session isolane_session;
typedef struct isolane_options isolane_options;
typedef struct isolane_stream isolane_stream;
typedef struct isolane_listener isolane_listener;
typedef struct isolane_poller isolane_poller;

/*
 * Version of the library, such as "0.1.0". While the major version is 0, compile programs with the header of the
 * library that they are linked with: compare with ISOLANE_VERSION.
 */
const char *isolane_version(void);

/*
 * Text of the last error in this thread, without a newline; "" before the first error. Valid until the next error in
 * this thread.
 */
const char *isolane_error_text(void);

/* ---- Volumes ------------------------------------------------------------------------------------------------ */

/* Flags of isolane_volume_open(): 0 or more of these, combined with `|`. */
enum {
	/* Reject changes, as the option `ro` does. */
	ISOLANE_READ_ONLY = 1
};

/*
 * Opens a volume, named as for `isolane serve` (`isolane help serve` has all forms and options):
 *
 *     PATH,size=10G                      a file, created sparse if it does not exist, or a block device
 *     mem:1G  null:1T                    memory; zeroes
 *     stripe:64k:A;B  mirror:A;B         several volumes; a volume with options is in parentheses
 *     delay:5ms:A  fault:100:A  ...      a filter
 *     rbd:POOL/IMAGE,conf=FILE           an image of a Ceph cluster, through librbd.so.1
 *     nvme+tcp://HOST[:4420]/NQN?nsid=N  a volume of an NVMe/TCP target; `&` separates parameters, and the options
 *                                        keep-alive=, reconnect=, and ro follow a comma: `?nsid=1,reconnect=3s`
 *
 * A volume of a target is connected by this program, or by an isolated engine with `?via=engine`, which is started if
 * none is running, or `?via=/PATH` of the socket of an engine. While the connection is lost, requests wait and the
 * library reconnects, for 10 minutes unless the option `reconnect=30s` limits it; lost writes are repeated if that is
 * safe. `keep-alive=5s` sets the keep-alive timeout. In `cores=0,,2`, a comma is written twice.
 *
 * A file or device is locked while it is open: another program cannot open it for writing.
 *
 * This waits up to 10 s for a target that does not respond.
 *
 * EINVAL: the name has an error, or the volumes in it do not fit. ENOENT: no such file, directory, subsystem, or
 * namespace, or no engine. EBUSY: the file or device is in use, also by this program. EACCES, EPERM, EROFS: no
 * permission. ENOMEM: too large for the memory. EMFILE, ENFILE: no descriptor is left. EHOSTUNREACH: unknown host name.
 * ECONNREFUSED, ETIMEDOUT, and other errors of connect(). ENOSPC, EDQUOT, EFBIG: a file cannot be created. EDEADLK:
 * fork() left a lock of the library held (see THREADS). EIO: any other reason, which isolane_error_text() has.
 */
isolane_volume *isolane_volume_open(const char *uri, int flags);

/* Name of the volume without its options, for messages. Valid until the volume is closed. */
const char *isolane_volume_name(const isolane_volume *volume);

/* Size in bytes. */
int64_t isolane_volume_bytes(const isolane_volume *volume);

/* Size of a block in bytes: a power of two of at least 512. All offsets and lengths are multiples of it. */
int isolane_volume_block_bytes(const isolane_volume *volume);

/* Returns 1 if changes are rejected, otherwise 0. */
int isolane_volume_is_read_only(const isolane_volume *volume);

/* Maximum length of a read or a write of a queue, in bytes. Blocking calls have no such limit. */
ssize_t isolane_volume_max_request_bytes(const isolane_volume *volume);

/* Flags of isolane_volume_pwrite(), isolane_volume_write_zeroes(), and requests. */
enum {
	/* Complete only when the data is durable. */
	ISOLANE_DURABLE = 1
};

/*
 * Reads exactly `length` bytes at `offset`, and returns `length`. After an error, `buffer` has undefined content.
 *
 * All calls below fail with EINVAL if a range is not made of whole blocks, or ends beyond the volume; EROFS: the volume
 * is read-only; ENOSPC, EDQUOT: the storage is full; EMFILE: no descriptor is left; EIO: an error of the storage or the
 * target, or a write whose fate is not known.
 *
 * ENOTCONN: the connection to the target was lost, and not restored in time. It is permanent: all later requests fail
 * likewise. Close the volume, and open it again. The same holds if a target restarts with another volume or another
 * content, as one in memory, or if the engine of a volume and its supervisor end, where the number can be ECONNABORTED;
 * the advice about streams in that text is not for volumes.
 */
ssize_t isolane_volume_pread(const isolane_volume *volume, void *buffer, size_t length, uint64_t offset);

/*
 * Writes exactly `length` bytes at `offset`, and returns `length`. Later reads return the data. It is durable after
 * isolane_volume_flush(), or with ISOLANE_DURABLE. After an error, any of the blocks can be written.
 */
ssize_t isolane_volume_pwrite(const isolane_volume *volume, const void *buffer, size_t length, uint64_t offset,
                              int flags);

/* Makes all completed changes durable. EIO: completed changes may be lost. */
int isolane_volume_flush(const isolane_volume *volume);

/*
 * Makes a range read as zeroes, without sending zeroes; its space can be freed. EOPNOTSUPP: the target cannot: write
 * zeroes.
 */
int isolane_volume_write_zeroes(const isolane_volume *volume, uint64_t length, uint64_t offset, int flags);

/* Frees a range whose content is no longer needed, if the volume can. Its content is undefined afterwards. */
int isolane_volume_discard(const isolane_volume *volume, uint64_t length, uint64_t offset);

/*
 * Closes the volume after its last queue is closed. Does not make changes durable: call isolane_volume_flush() first.
 * A connection to a target is shut down, which can take 5 s if the target does not respond. If the volume has RBD
 * images, this waits up to 10 s for all images that this program is closing.
 */
void isolane_volume_close(isolane_volume *volume);

/* ---- Queues of requests ------------------------------------------------------------------------------------- */

/* Operations of a request. */
enum {
	ISOLANE_OP_READ = 1,
	ISOLANE_OP_WRITE = 2,
	/* Ignores the range. Covers the requests that have completed before. */
	ISOLANE_OP_FLUSH = 3,
	ISOLANE_OP_DISCARD = 4,
	ISOLANE_OP_WRITE_ZEROES = 5
};

/* A request. Set the fields that an operation does not use to 0. */
typedef struct isolane_request {
	int operation;
	/* 0, or ISOLANE_DURABLE for a write. */
	int flags;
	uint64_t offset;
	uint64_t length;
	/* Memory of the data of a read or write. Until the completion, do not write or free it, nor read that of a read. */
	void *buffer;
	/* Returned in the completion. */
	uint64_t user_data;
} isolane_request;

/* The completion of a request. */
typedef struct isolane_completion {
	uint64_t user_data;
	/* 0, or the number of the error, as that of a blocking call. */
	int error;
	int reserved;
	/* Text of the error, or NULL. Valid until the next isolane_queue_poll() or isolane_queue_wait(). */
	const char *text;
} isolane_completion;

/* Creates a queue for up to `depth` requests at a time: 1 to 4096. */
isolane_queue *isolane_queue_new(const isolane_volume *volume, uint32_t depth);

/*
 * Submits requests, and returns their number, which is less than `count` if a later one has an error or finds the queue
 * full: submit the others again, and the call fails if the first of them has an error. The library copies the requests.
 * A failure does not end requests that were submitted before: they use their memory until they complete, so take their
 * completions, or close the queue, before you free or reuse it.
 *
 * Requests of a queue can complete in any order, and requests for the same blocks can too: wait for one before you
 * submit another that depends on it. The next isolane_queue_wait(), isolane_queue_poll(), or isolane_queue_arm() sends
 * all submitted requests together. Call isolane_queue_send() to start them before other work.
 *
 * EAGAIN: the queue is full until completions are taken. EINVAL: the operation, a flag, the range, or the length, which
 * is at most isolane_volume_max_request_bytes(). EROFS: the volume is read-only.
 */
int isolane_queue_submit(isolane_queue *queue, const isolane_request *requests, size_t count);

/* Sends the submitted requests. They complete without another call. */
int isolane_queue_send(isolane_queue *queue);

/*
 * Stores up to `capacity` completions, and returns their number. Sends the submitted requests, and does not wait. A call
 * that leaves completions, because `capacity` is too small, leaves the requests too, for the call that takes the last.
 */
int isolane_queue_poll(isolane_queue *queue, isolane_completion *completions, size_t capacity);

/*
 * Like isolane_queue_poll(), but waits until there are at least `minimum` completions, at most for `timeout_ns`.
 * Returns fewer if the time is over, or if there are fewer requests.
 */
int isolane_queue_wait(isolane_queue *queue, isolane_completion *completions, size_t capacity, size_t minimum,
                       int64_t timeout_ns);

/*
 * For a thread that also waits for other descriptors: add isolane_queue_fd(), an eventfd, to poll() or epoll, for
 * reading. Call isolane_queue_arm() before each sleep, and sleep only if it returns 0; 1 means that completions are
 * pending. After waking, call isolane_queue_disarm(), then isolane_queue_poll(). The descriptor can also become readable
 * early: then there are no completions.
 */
int isolane_queue_arm(isolane_queue *queue);
int isolane_queue_disarm(isolane_queue *queue);
int isolane_queue_fd(const isolane_queue *queue);

/*
 * Waits for all requests, because they use memory of the program, and closes the queue. While a connection is lost,
 * that takes until it is restored, or the time of `reconnect=` is over: 10 minutes by default. Remove the descriptor of
 * isolane_queue_fd() from epoll first: the library can keep it open for a moment.
 */
void isolane_queue_close(isolane_queue *queue);

/*
 * Allocates zeroed memory for requests, at a multiple of 4096. It is registered with the library: isolane_memory_free()
 * can be called while requests use it, and frees it after the last of them.
 *
 * Data is not copied between it and a file or device with direct I/O, an RBD image, or the socket of a target that this
 * program connects. Other memory is as fast for targets, and for the others if it is aligned to 4096 bytes. Data is
 * copied once for volumes in memory, stripes, mirrors, filters, and `via=engine`.
 *
 * EINVAL: `bytes` is 0 or too large. ENOMEM.
 */
isolane_memory *isolane_memory_new(size_t bytes);
void *isolane_memory_data(const isolane_memory *memory);
void isolane_memory_free(isolane_memory *memory);

/* ---- Sessions: the connection to an engine ------------------------------------------------------------------ */

/* Flags of isolane_session_open(): 0 or more of these, combined with `|`. */
enum {
	/* Fail if no engine is listening, instead of starting one. */
	ISOLANE_NO_SPAWN = 1
};

/*
 * Attaches to the engine that listens on the Unix socket `path`. NULL selects the default of `isolane engine`:
 * $XDG_RUNTIME_DIR/isolane/engine.sock, or /tmp/isolane-UID/engine.sock. The directory of another path must exist.
 *
 * If no engine is listening, this function starts one. It runs the program named by ISOLANE_BIN in the environment, or
 * else `isolane` in the directory of this program, or else `isolane` in PATH. That engine exits after 30 s without
 * clients. The start uses a child process that exits immediately: a program that ignores SIGCHLD, or reaps children
 * that it did not start, must start its engine with `isolane engine`.
 *
 * The session shares `memory_bytes` of memory with the engine: a multiple of 4096, or 0 for 1 GiB. The system
 * allocates each page when it is first used. Each stream uses the memory of its two rings, and 4096 bytes.
 *
 * The engine sees all data of its streams. It must run as this process's user, as root, or as a user whose ID is in
 * ISOLANE_TRUSTED_UIDS in the environment, a list separated by commas.
 *
 * ENOENT, ECONNREFUSED: no engine is listening, and none could be started. EACCES: this user cannot access the
 * socket. EPERM: the engine runs as another user, does not serve this user, or refuses this much memory. ETIMEDOUT:
 * the engine does not respond. EDEADLK: fork() left a lock of the library held (see THREADS).
 */
isolane_session *isolane_session_open(const char *path, size_t memory_bytes, int flags);

/* Returns 0 while the engine is available; otherwise fails with ECONNABORTED. */
int isolane_session_check(const isolane_session *session);

/*
 * Returns the number of the engine's cores, and stores the CPUs of the first `capacity` of them in `cpus`, which can
 * be NULL if `capacity` is 0.
 */
int isolane_session_cores(const isolane_session *session, uint32_t *cpus, size_t capacity);

/* Closes the session after its last stream, listener, and poller are closed. */
void isolane_session_close(isolane_session *session);

/* ---- Options of streams ------------------------------------------------------------------------------------- */

/* Options of isolane_options_set(), with their defaults. */
enum {
	/*
	 * Size of the receive ring in bytes, rounded up to a power of two of at least 4096; engines accept at most
	 * 1 << 26. 0 selects 262144, or less so that the memory suffices for the session's maximum number of streams.
	 * Default: 0.
	 */
	ISOLANE_RX_BYTES = 1,
	/* Size of the send ring, likewise. Default: 0. */
	ISOLANE_TX_BYTES = 2,
	/*
	 * Minimum size of a blocking write that bypasses the ring, in bytes. Such a write uses the socket directly once
	 * the ring is empty: it saves a copy, but uses processor time of the program. Default: 16384.
	 */
	ISOLANE_BYPASS_WRITE_MIN = 3,
	/* Time that a blocking call spins before it sleeps, in nanoseconds. Default: 20000. */
	ISOLANE_SPIN_NS = 4,
	/*
	 * Index of the engine's core, as in isolane_session_cores(). Default: the core where the packets of the stream
	 * arrive if the engine runs there; otherwise round robin.
	 */
	ISOLANE_CORE = 5,
	/*
	 * Minimum size of blocking reads that bypass the ring, in bytes. Reads start to use the socket directly after a
	 * few reads that returned at least this much, and stop after a few that returned less, or immediately if another
	 * kind of read or wait is used. Default: 4096.
	 */
	ISOLANE_BYPASS_READ_MIN = 6
};

/* Creates options with all defaults. NULL also selects the defaults wherever options are expected. */
isolane_options *isolane_options_new(void);

/* Sets an option. EINVAL: unknown option, or value too large. */
int isolane_options_set(isolane_options *options, int option, uint64_t value);

/* Frees the options. Objects that were created with them are not affected. */
void isolane_options_free(isolane_options *options);

/* ---- Streams ------------------------------------------------------------------------------------------------ */

/*
 * Connects to `address`, "HOST:PORT" or "[IPv6]:PORT", and adopts the connection. Waits as long as the system does;
 * for a timeout or a local address, connect a socket and adopt it.
 *
 * EHOSTUNREACH: unknown host name. Also the errors of connect() and isolane_stream_adopt().
 */
isolane_stream *isolane_stream_connect(isolane_session *session, const char *address,
                                       const isolane_options *options);

/*
 * Transfers a connected TCP socket to the engine. On success, this closes the descriptor `fd`, and isolane_stream_fd()
 * is another descriptor of the same socket: remove `fd` from every epoll set first. On failure, `fd` is unchanged and
 * still belongs to the caller.
 *
 * Do not read or write the socket while the stream exists. O_NONBLOCK has no effect on the stream. TCP_NODELAY works
 * as usual: without it, small writes can wait for an acknowledgment of earlier ones.
 *
 * EPERM: the engine cannot adopt the socket (it must be TCP, connected, and without kernel TLS), or is at its limit
 * of streams. ENOMEM: the session's memory is used up. EBADF, ENOTSOCK.
 */
isolane_stream *isolane_stream_adopt(isolane_session *session, int fd, const isolane_options *options);

/*
 * Turns the stream back into a plain socket, which the caller closes. No data is lost in either direction: this call
 * first sends the data that was written but not yet sent, and fails if no progress is made for the write timeout. On
 * failure the connection is closed, with a reset if data remains unsent; the stream is released in both cases.
 *
 * Also works without an engine: if the session is closed, this waits up to 10 s for the engine to finish.
 */
int isolane_stream_into_fd(isolane_stream *stream);

/*
 * Reads up to `length` bytes, and waits for at least one. Returns the number of bytes, or 0 at the end of the
 * stream. Uses the read half.
 *
 * EAGAIN: the read timeout expired.
 */
ssize_t isolane_stream_read(isolane_stream *stream, void *buffer, size_t length);

/*
 * Writes up to `length` bytes, and waits for space for at least one. Returns the number of bytes, which can be less
 * than `length`, as with write(). Uses the write half.
 *
 * The data is sent without another call, even if the stream is closed or the program exits, while the engine or its
 * supervisor is running. If both exit first, isolane_stream_into_fd() sends the data. A stream that is closed instead,
 * or whose program exits, is reset, so that the peer does not mistake partial data for the whole.
 *
 * EAGAIN: the write timeout expired. EPIPE: the write half is shut down, or the peer is gone.
 */
ssize_t isolane_stream_write(isolane_stream *stream, const void *buffer, size_t length);

/* Like isolane_stream_read(), without waiting. EAGAIN: no data yet. */
ssize_t isolane_stream_try_read(isolane_stream *stream, void *buffer, size_t length);

/* Like isolane_stream_write(), without waiting. EAGAIN: no space yet. */
ssize_t isolane_stream_try_write(isolane_stream *stream, const void *buffer, size_t length);

/* Sets the timeout of reads; no limit by default. Uses the read half. */
int isolane_stream_set_read_timeout(isolane_stream *stream, int64_t timeout_ns);

/* Sets the timeout of writes; no limit by default. Uses the write half. */
int isolane_stream_set_write_timeout(isolane_stream *stream, int64_t timeout_ns);

/*
 * Shuts down one or both halves: `how` is SHUT_RD, SHUT_WR, or SHUT_RDWR of <sys/socket.h>. Reads return 0 after the
 * data that is already in the ring. The peer sees the end of the stream after all written data. Uses the halves that
 * it shuts down, and does not wake a thread that waits in the other half.
 */
int isolane_stream_shutdown(isolane_stream *stream, int how);

/*
 * The stream's socket, for getpeername(), getsockopt(), setsockopt(), and similar calls; it belongs to the stream. Do
 * not read, write, shut down, or close it, or wait for it with poll() or epoll: use a poller instead.
 */
int isolane_stream_fd(const isolane_stream *stream);

/* Index of the engine's core that serves the stream, as in isolane_session_cores(). */
int isolane_stream_core(const isolane_stream *stream);

/* A pointer for the program's own use, initially NULL. Any thread can use these functions at any time. */
int isolane_stream_set_data(isolane_stream *stream, void *data);
void *isolane_stream_data(const isolane_stream *stream);

/*
 * Closes the stream, as close() does. Written data is still sent, and the call does not wait; if SO_LINGER is set to a
 * nonzero time, it waits up to that time until the peer acknowledges all data.
 *
 * The connection is reset if received data was not read, if SO_LINGER is set to 0, or if the engine and its supervisor
 * exit before all data is sent.
 */
void isolane_stream_close(isolane_stream *stream);

/* ---- Listeners ---------------------------------------------------------------------------------------------- */

/*
 * Listens on `address`, "HOST:PORT" or "[IPv6]:PORT"; port 0 selects a free port. The program itself listens: the
 * engine receives only accepted connections.
 *
 * EHOSTUNREACH: unknown host name. Also the errors of bind().
 */
isolane_listener *isolane_listener_bind(isolane_session *session, const char *address,
                                        const isolane_options *options);

/*
 * Creates a listener from a socket that is already listening. On success, the descriptor belongs to the listener; on
 * failure, to the caller. EBADF. EINVAL: the socket is not listening.
 */
isolane_listener *isolane_listener_from_fd(isolane_session *session, int fd, const isolane_options *options);

/*
 * Accepts and adopts the next connection. Waits for one unless the listener's socket is O_NONBLOCK.
 *
 * EAGAIN: no connection is pending on a nonblocking socket. Also the errors of accept() and isolane_stream_adopt(); a
 * connection that the engine refuses is closed.
 */
isolane_stream *isolane_listener_accept(isolane_listener *listener);

/*
 * The listener's socket, for getsockname(), poll(), epoll, and similar calls, and for accept() if a connection is
 * meant for a poller. It belongs to the listener.
 */
int isolane_listener_fd(const isolane_listener *listener);

/* Releases the listener, and returns its socket, which the caller closes. */
int isolane_listener_into_fd(isolane_listener *listener);

/* Stops listening. */
void isolane_listener_close(isolane_listener *listener);

/* ---- Pollers: one thread that waits for many streams -------------------------------------------------------- */

/* Interests of isolane_stream_arm(). */
enum {
	/* Data to read, or the end of the stream. */
	ISOLANE_READ = 1,
	/* Space to write, or an error. */
	ISOLANE_WRITE = 2
};

/*
 * Creates a poller for up to `streams` streams, which it must adopt itself. With more streams, some notifications are
 * delayed.
 *
 * EPERM: the engine is at its limit of notification queues, or allows only shorter ones. ENOMEM.
 */
isolane_poller *isolane_poller_new(isolane_session *session, uint32_t streams);

/* Like isolane_stream_adopt(); the poller reports the stream each time that the stream is armed. */
isolane_stream *isolane_poller_adopt(isolane_poller *poller, int fd, const isolane_options *options);

/*
 * Requests one notification in the stream's poller once the stream is ready for `interest`: ISOLANE_READ,
 * ISOLANE_WRITE, or both combined with `|`. Returns 1 if the stream is ready already: then read or write; a
 * notification can still arrive. Returns 0 if the program must wait.
 *
 * A notification can also arrive early, for example if the stream is new or the engine restarted: try to read or
 * write, and arm again on EAGAIN. One notification ends all earlier requests of the stream: a program that waits to
 * read and to write tries both, and arms again for each that is not ready. Uses the halves of `interest`.
 */
int isolane_stream_arm(isolane_stream *stream, int interest);

/*
 * Waits for a notification, and stores its stream in `stream`. Returns 1, or 0 with NULL in `stream` after
 * `timeout_ns`. Never returns a closed stream.
 */
int isolane_poller_wait(isolane_poller *poller, isolane_stream **stream, int64_t timeout_ns);

/* Like isolane_poller_wait(), without waiting. */
int isolane_poller_take(isolane_poller *poller, isolane_stream **stream);

/*
 * For a thread that also waits for other descriptors: add isolane_poller_fd() to poll() or epoll, for reading. Call
 * isolane_poller_arm() before each sleep, and sleep only if it returns 0; 1 means that a notification is pending.
 * After waking, call isolane_poller_disarm(), then isolane_poller_take() until it returns 0. The end of the session
 * also wakes the thread: then isolane_poller_disarm() fails.
 */
int isolane_poller_arm(isolane_poller *poller);
int isolane_poller_disarm(isolane_poller *poller);
int isolane_poller_fd(const isolane_poller *poller);

/* Closes the poller. Its streams remain usable, without notifications. */
void isolane_poller_close(isolane_poller *poller);

#ifdef __cplusplus
}
#endif

#endif
