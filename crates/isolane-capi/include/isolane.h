/*
 * isolane.h - TCP streams whose network processing is done by an isolated engine.
 *
 * `isolane engine` owns cores and does the network processing of the programs that attach to it. A program
 * keeps the real sockets: the engine works on duplicates, and the bytes go through memory that both share. So
 * a stream can be taken back as a plain socket at any moment, and survives the death of the engine.
 *
 *     isolane_session *session = isolane_session_open(NULL, 0, 0);
 *     isolane_stream *stream = session ? isolane_stream_connect(session, "127.0.0.1:7", NULL) : NULL;
 *     if (stream == NULL || isolane_stream_write(stream, "hello", 5) < 0) {
 *         fprintf(stderr, "%s\n", isolane_error_text());
 *     }
 *     isolane_stream_close(stream);
 *     isolane_session_close(session);
 *
 * Link with libisolane.so (`-lisolane`, or as `pkg-config isolane` says), or with libisolane.a and
 * `-lgcc_s -lm -lpthread -ldl`.
 *
 * ERRORS
 *
 * A function that returns a number returns -1 if it fails, one that returns a pointer returns NULL; then errno
 * says why, and isolane_error_text() who is at fault and what to do. Of any function:
 *
 *     EINVAL         an argument is wrong: a null pointer, a number out of range, an address that is none
 *     ECONNABORTED   the session is over: the engine has ended for good, or has dropped this program. Attach
 *                    again; streams are taken back without loss, with isolane_stream_into_fd()
 *     EPROTO         the engine breaks the rules of the shared memory, or has another version
 *     EIO            a bug in this library, or something that has no number
 *
 * and those that are named beside it. What the system says of a socket (ECONNRESET, EPIPE, ECONNREFUSED, EMFILE,
 * ...) is passed on. Nothing raises SIGPIPE, nothing fails with EINTR: a call goes on after a signal was
 * handled. A call that succeeds may change errno all the same.
 *
 * THREADS
 *
 * Sessions and listeners may be used by several threads at once. A stream has two halves: one thread at a time
 * may use its half that reads and, meanwhile, one its half that writes; beside each function stands what it
 * uses. A poller, and options that are being set, belong to one thread at a time. What has been closed or turned
 * into a descriptor is gone, and must not be in use by any thread when that begins; a call that waits is not ended
 * by it.
 *
 * The library starts threads of its own: one for each session, and one for the streams of a session that have no
 * poller. They handle signals as the thread does that opened the session.
 *
 * A session and all that came of it belong to the process that opened it, and end with that process. In a child
 * of fork() their use fails with ECONNABORTED, and closing them does nothing; a child opens a session of its
 * own. All descriptors are closed by exec().
 *
 * LIFETIME
 *
 * What a function gives is to be given back with the matching ..._close() or ..._free(), in any order: a session
 * that is closed while it has streams ends with the last of them. These take NULL, and do nothing with it.
 *
 * TIMES are in nanoseconds; a negative one means for ever, 0 not to wait at all.
 */
#ifndef ISOLANE_H
#define ISOLANE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. */
#define ISOLANE_VERSION "0.1.0"

typedef struct isolane_session isolane_session;
typedef struct isolane_options isolane_options;
typedef struct isolane_stream isolane_stream;
typedef struct isolane_listener isolane_listener;
typedef struct isolane_poller isolane_poller;

/*
 * The version of the library, such as "0.1.0". As long as the first number is 0, programs are to be compiled
 * with the header of the library that they are linked with: compare it with ISOLANE_VERSION.
 */
const char *isolane_version(void);

/*
 * What the last function that failed in this thread had to say, without a line's end; "" if none has. It
 * stays until the next one fails in this thread.
 */
const char *isolane_error_text(void);

/* ---- Sessions: the connection to an engine ------------------------------------------------------------------ */

/* How a session is opened: 0, or these or-ed. */
enum {
	/* Where no engine listens, that is an error: none is started. */
	ISOLANE_DONT_START = 1
};

/*
 * Attaches to the engine that listens on the Unix socket `path`; if that is NULL, where engines listen by default:
 * $XDG_RUNTIME_DIR/isolane/engine.sock, else /tmp/isolane-UID/engine.sock.
 *
 * Where none listens, one is started: the program `isolane` that the environment names in ISOLANE_BIN, else the one beside
 * this program, else the one in the PATH. It ends once nobody has been attached for 30 s. That takes a child
 * process, which ends at once: a program that ignores its children's ends, or reaps children that it does not
 * know, is to start its engine itself, with `isolane engine`.
 *
 * `memory_bytes` of memory are shared with the engine, a multiple of 4096, 0 for 1 GiB. They are taken from the
 * system page by page as they are used. Each stream has its two rings there, and 4096 bytes besides.
 *
 * The engine sees all that goes through it: it must be of this process's user, of root, or of a user whose number the
 * environment names in ISOLANE_TRUSTED_UIDS, separated by commas.
 *
 * Where `path` is given, its folder must be there.
 *
 * ENOENT, ECONNREFUSED: no engine listens there, and none could be started. EACCES: this user may not come to the socket.
 * EPERM: the engine is another user's, or does not serve this user, or not so much memory. ETIMEDOUT: it does not answer.
 */
isolane_session *isolane_session_open(const char *path, size_t memory_bytes, int flags);

/* 0 as long as there is an engine; otherwise ECONNABORTED. */
int isolane_session_check(const isolane_session *session);

/*
 * How many cores the engine runs on; the numbers of the first `capacity` of them are put into `cpus`, which may
 * be NULL if `capacity` is 0.
 */
int isolane_session_cores(const isolane_session *session, uint32_t *cpus, size_t capacity);

/* Has the session end, with its last stream, listener and poller. */
void isolane_session_close(isolane_session *session);

/* ---- Options of streams ------------------------------------------------------------------------------------- */

enum {
	/* Bytes of the ring of what is received, rounded up to a power of two of at least 4096; engines take 1 << 26 at most.
	 * 0: 262144, or less if the memory is to last for as many streams as the session may have. 0. */
	ISOLANE_RX_BYTES = 1,
	/* Bytes of the ring of what is to be sent, likewise. 0. */
	ISOLANE_TX_BYTES = 2,
	/*
	 * A blocking write of at least so many bytes goes past the ring, on the program's own socket, once nothing
	 * waits in the ring: one copy less, for processor time of the program's. 16384.
	 */
	ISOLANE_PAST_BYTES = 3,
	/* How long a blocking call spins before it sleeps, in nanoseconds. 20000. */
	ISOLANE_SPIN_NS = 4,
	/*
	 * On which of the engine's cores, counted from 0 as by isolane_session_cores(). Unless it is set, the one where
	 * its packets arrive if the engine has that, else each in turn.
	 */
	ISOLANE_CORE = 5,
	/*
	 * Blocking reads go past the ring, on the program's own socket, after a few of them that brought at least so
	 * many bytes each; through it again after a few that brought less, or at once if the stream is read or waited
	 * for in another way. 4096.
	 */
	ISOLANE_PAST_BYTES_READ = 6
};

/* The defaults: what NULL means wherever options are taken. */
isolane_options *isolane_options_new(void);

/* Sets one of ISOLANE_RX_BYTES and so on. EINVAL: there is no such option, or the value is larger than it can have. */
int isolane_options_set(isolane_options *options, int option, uint64_t value);

/* What was made with the options keeps them. */
void isolane_options_free(isolane_options *options);

/* ---- Streams ------------------------------------------------------------------------------------------------ */

/*
 * Connects to `address`, "HOST:PORT" or "[IPv6]:PORT", and has the connection adopted. Waits as long as the
 * system does; for a timeout or a local address, connect a socket and adopt it.
 *
 * EHOSTUNREACH: the host's name is not known. As connect(), and isolane_stream_adopt().
 */
isolane_stream *isolane_stream_connect(isolane_session *session, const char *address,
                                       const isolane_options *options);

/*
 * Has the engine do the network processing of a connected TCP socket from now on. If that succeeds, the
 * descriptor `fd` is closed, and isolane_stream_fd() is another one of the same socket: take `fd` out of every
 * epoll set before. If it fails, `fd` is what it was, and still the caller's.
 *
 * As long as the stream lives, nobody may read or write the socket past it. Whether the socket is O_NONBLOCK
 * changes nothing. TCP_NODELAY does what it always does: unless it is set, small writes may wait for an answer to
 * those before.
 *
 * EPERM: the engine does not take the socket (it must be TCP, connected, without kernel TLS), or has no more
 * streams to give. ENOMEM: the session's memory is used up. EBADF, ENOTSOCK.
 */
isolane_stream *isolane_stream_adopt(isolane_session *session, int fd, const isolane_options *options);

/*
 * Takes the connection back: returns a plain socket that no engine knows of any more, and that the caller closes.
 * Nothing is lost, whatever is under way in either direction: what was written and is not sent yet is sent first,
 * by this call, which waits for that no longer than the write timeout between two bits of progress. The stream is
 * gone in any case; if this fails, so is the connection, which is reset if something was not sent. That works without an engine, too: if the session is over,
 * this waits for 10 s at most until the engine has ended with all that it did.
 */
int isolane_stream_into_fd(isolane_stream *stream);

/*
 * Reads up to `length` bytes, and waits until there is at least one. Returns how many, and 0 once the peer sends
 * nothing more. Uses the half that reads.
 *
 * EAGAIN: the read timeout has passed.
 */
ssize_t isolane_stream_read(isolane_stream *stream, void *buffer, size_t length);

/*
 * Writes up to `length` bytes, and waits until there is room for at least one. Returns how many: that may be
 * fewer, as of write(). They are sent in order, without any other call, even if the stream is closed or the program
 * ends, as long as the engine or its supervisor lives. If both end first, isolane_stream_into_fd() sends them; a stream
 * that is closed instead, or whose program ends, is reset, so that the peer does not take a part for all. Uses the half that writes.
 *
 * EAGAIN: the write timeout has passed. EPIPE: it was shut down, or the peer is gone.
 */
ssize_t isolane_stream_write(isolane_stream *stream, const void *buffer, size_t length);

/* As isolane_stream_read(), without waiting. EAGAIN: nothing is there yet. */
ssize_t isolane_stream_try_read(isolane_stream *stream, void *buffer, size_t length);

/* As isolane_stream_write(), without waiting. EAGAIN: there is no room yet. */
ssize_t isolane_stream_try_write(isolane_stream *stream, const void *buffer, size_t length);

/* How long a read waits; for ever unless set. Uses the half that reads. */
int isolane_stream_set_read_timeout(isolane_stream *stream, int64_t timeout_ns);

/* How long a write waits; for ever unless set. Uses the half that writes. */
int isolane_stream_set_write_timeout(isolane_stream *stream, int64_t timeout_ns);

/*
 * Shuts down what `how` says, SHUT_RD, SHUT_WR or SHUT_RDWR of <sys/socket.h>: reads end behind what is already in
 * the ring; the peer is told that nothing more comes once all that was written is sent. Uses the half or halves
 * that it shuts down, and does not wake who waits in the other.
 */
int isolane_stream_shutdown(isolane_stream *stream, int how);

/*
 * The stream's socket, for getpeername(), getsockopt(), setsockopt() and their like; it stays the stream's. Not to be
 * read, written, shut down or closed, and of no use to poll() or epoll: see pollers below.
 */
int isolane_stream_fd(const isolane_stream *stream);

/* Which of the engine's cores works on the stream, counted from 0 as by isolane_session_cores(). */
int isolane_stream_core(const isolane_stream *stream);

/* A pointer of the program's own, NULL at first, which the library only keeps. For any thread at any time. */
int isolane_stream_set_data(isolane_stream *stream, void *data);
void *isolane_stream_data(const isolane_stream *stream);

/*
 * Closes the stream without waiting, unless SO_LINGER is set to a time: then it waits until the peer has
 * acknowledged all that was written, or for that time, as close() does. What was written is still sent; if
 * something was received and not read, or SO_LINGER is set to 0, the connection is reset, as by close(). So it is if
 * the engine and its supervisor have ended, or end, before all is sent.
 */
void isolane_stream_close(isolane_stream *stream);

/* ---- Listeners ---------------------------------------------------------------------------------------------- */

/*
 * Listens on `address`, "HOST:PORT" or "[IPv6]:PORT" (port 0: any that is free), itself: only the connections
 * that come in are the engine's.
 *
 * EHOSTUNREACH: the host's name is not known. As bind().
 */
isolane_listener *isolane_listener_bind(isolane_session *session, const char *address,
                                        const isolane_options *options);

/*
 * Of a socket that listens already. If that succeeds, the descriptor is the listener's; if it fails, still the
 * caller's. EBADF, EINVAL: it does not listen.
 */
isolane_listener *isolane_listener_from_fd(isolane_session *session, int fd, const isolane_options *options);

/*
 * The next connection, adopted. Waits for one unless the listener's socket is O_NONBLOCK.
 *
 * EAGAIN: it is, and there is none. As accept(), and isolane_stream_adopt(); a connection that the engine does
 * not take is closed.
 */
isolane_stream *isolane_listener_accept(isolane_listener *listener);

/*
 * The listener's socket, for getsockname() and its like, for poll() and epoll, and for accept() where a connection
 * is to go to a poller; it stays the listener's.
 */
int isolane_listener_fd(const isolane_listener *listener);

/* The listener's socket, which is the caller's from now on; the listener is gone. */
int isolane_listener_into_fd(isolane_listener *listener);

/* Stops listening. */
void isolane_listener_close(isolane_listener *listener);

/* ---- Pollers: one thread that waits for many streams -------------------------------------------------------- */

/* What to wait for. */
enum {
	/* Bytes to read, or their end. */
	ISOLANE_READ = 1,
	/* Room to write, or an error. */
	ISOLANE_WRITE = 2
};

/*
 * Who hears of up to `streams` streams, those that it has adopted itself. If there are more, some are heard of
 * late.
 *
 * EPERM: the engine has no more queues of notices to give, or none so long. ENOMEM.
 */
isolane_poller *isolane_poller_new(isolane_session *session, uint32_t streams);

/* As isolane_stream_adopt(); the poller hears of the stream each time that it is armed. */
isolane_stream *isolane_poller_adopt(isolane_poller *poller, int fd, const isolane_options *options);

/*
 * Asks for one notice in the stream's poller once there is what `interest` names: ISOLANE_READ, ISOLANE_WRITE, or
 * both of them or-ed. Returns 1 if it is there already (then read or write; a notice may come all the
 * same), and 0 if it is to be waited for. A notice may also come for nothing, as when the stream is new or the engine
 * has been restarted: try, and arm again on EAGAIN. One notice answers all that was asked for before, by whichever
 * half: who waits to read and to write looks at both then, and arms again for what is not there. Uses the half or
 * halves that `interest` names.
 */
int isolane_stream_arm(isolane_stream *stream, int interest);

/*
 * Waits for a notice, and puts the stream that it is about into `stream`. Returns 1, or 0 if `timeout_ns` have
 * passed; then `stream` is NULL. It tells of no stream that was closed before.
 */
int isolane_poller_wait(isolane_poller *poller, isolane_stream **stream, int64_t timeout_ns);

/* As isolane_poller_wait(), without waiting. */
int isolane_poller_take(isolane_poller *poller, isolane_stream **stream);

/*
 * For a thread that waits for other descriptors as well: have poll() or epoll watch isolane_poller_fd() for reading;
 * before each sleep call isolane_poller_arm(), and sleep only if it returns 0: 1 means that a notice is there already.
 * Once awake call isolane_poller_disarm(), then isolane_poller_take() until it returns 0. The end of the session
 * wakes, too: then isolane_poller_disarm() fails.
 */
int isolane_poller_arm(isolane_poller *poller);
int isolane_poller_disarm(isolane_poller *poller);
int isolane_poller_fd(const isolane_poller *poller);

/* Its streams live on, without notices. */
void isolane_poller_close(isolane_poller *poller);

#ifdef __cplusplus
}
#endif

#endif
