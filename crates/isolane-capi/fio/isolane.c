/*
 * External engine of fio: the volumes of isolane.h.
 *
 * It is compiled against the sources of the fio that loads it, of the same version, after their `./configure`:
 *
 *     cc -O2 -shared -fPIC -D_GNU_SOURCE -include FIO-SOURCES/config-host.h -I FIO-SOURCES isolane.c \
 *         $(pkg-config --cflags --libs isolane) -o isolane.so
 *     fio --name=read --ioengine=external:./isolane.so --uri='nvme+tcp://HOST/NQN?nsid=1' --rw=randread --iodepth=32
 *
 * `uri` is the name of a volume, as for isolane_volume_open(). A comma in it needs no escape, a colon is written `\:`
 * in job files only. With --thread, jobs with the same uri share the volume, and each has a queue. Otherwise each job
 * opens its own: then a file can have one job only, and a volume in memory is a different one in each. Volumes are
 * opened for writes, which later jobs can need; fio's --readonly and the option `ro` of the volume prevent that.
 *
 * Buffers are memory of the library (isolane_memory_new): the option `mem` has no effect, or is an error of fio.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <isolane.h>

#include "fio.h"
#include "optgroup.h"

/* A volume that jobs of this process share. */
struct shared_volume {
	struct shared_volume *next;
	isolane_volume *volume;
	unsigned users;
	char uri[];
};

/* State of a job. */
struct job {
	struct shared_volume *shared;
	isolane_queue *queue;
	isolane_memory *memory;
	isolane_completion *done;
};

struct job_options {
	void *padding;
	char *uri;
	unsigned int durable;
};

static struct fio_option options[] = {
	{
		.name = "uri",
		.lname = "Isolane volume",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct job_options, uri),
		.help = "Name of the volume, as for isolane_volume_open()",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "durable",
		.lname = "Durable writes",
		.type = FIO_OPT_BOOL,
		.off1 = offsetof(struct job_options, durable),
		.def = "0",
		.help = "Complete writes only when their data is durable",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = NULL,
	},
};

static struct shared_volume *volumes;
static pthread_mutex_t volumes_lock = PTHREAD_MUTEX_INITIALIZER;

/* Logs the last error of the library, and returns its number. */
static int report(struct thread_data *td, const char *action)
{
	int number = errno;

	log_err("fio: %s: cannot %s: %s\n", td->o.name, action, isolane_error_text());
	return number ? number : EIO;
}

/* Opens a volume, or shares an open one. */
static struct shared_volume *open_volume(struct thread_data *td, const char *uri)
{
	struct shared_volume *shared;

	pthread_mutex_lock(&volumes_lock);
	for (shared = volumes; shared; shared = shared->next)
		if (!strcmp(shared->uri, uri))
			break;
	if (!shared) {
		shared = calloc(1, sizeof(*shared) + strlen(uri) + 1);
		if (shared)
			shared->volume = isolane_volume_open(uri, read_only ? ISOLANE_READ_ONLY : 0);
		if (!shared || !shared->volume) {
			free(shared);
			shared = NULL;
		} else {
			strcpy(shared->uri, uri);
			shared->next = volumes;
			volumes = shared;
		}
	}
	if (shared)
		shared->users++;
	pthread_mutex_unlock(&volumes_lock);
	return shared;
}

static void close_volume(struct shared_volume *shared)
{
	struct shared_volume **link = &volumes;

	pthread_mutex_lock(&volumes_lock);
	if (--shared->users == 0) {
		while (*link != shared)
			link = &(*link)->next;
		*link = shared->next;
		isolane_volume_close(shared->volume);
		free(shared);
	}
	pthread_mutex_unlock(&volumes_lock);
}

/* Finds the size of the volume. A process that fork() creates opens it again. */
static int fio_isolane_setup(struct thread_data *td)
{
	struct job_options *o = td->eo;
	struct shared_volume *shared;

	if (!o->uri) {
		log_err("fio: %s: no volume: set uri, for example uri=mem:1G\n", td->o.name);
		return 1;
	}
	if (!td->files_index) {
		add_file(td, "isolane", 0, 0);
		td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
		td->o.open_files++;
	}
	shared = open_volume(td, o->uri);
	if (!shared) {
		td_verror(td, report(td, "open the volume"), "isolane_volume_open");
		return 1;
	}
	td->files[0]->real_file_size = isolane_volume_bytes(shared->volume);
	close_volume(shared);
	return 0;
}

static void fio_isolane_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job)
		return;
	isolane_queue_close(job->queue);
	isolane_memory_free(job->memory);
	if (job->shared)
		close_volume(job->shared);
	free(job->done);
	free(job);
	td->io_ops_data = NULL;
}

static int fio_isolane_init(struct thread_data *td)
{
	struct job_options *o = td->eo;
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return 1;
	td->io_ops_data = job;
	job->done = calloc(td->o.iodepth, sizeof(*job->done));
	job->shared = open_volume(td, o->uri);
	if (job->shared)
		job->queue = isolane_queue_new(job->shared->volume, td->o.iodepth);
	if (!job->done || !job->queue) {
		td_verror(td, report(td, "open the volume"), "isolane_queue_new");
		return 1;
	}
	return 0;
}

static int fio_isolane_iomem_alloc(struct thread_data *td, size_t bytes)
{
	struct job *job = td->io_ops_data;

	job->memory = isolane_memory_new(bytes);
	if (!job->memory)
		return report(td, "allocate memory");
	td->orig_buffer = isolane_memory_data(job->memory);
	return 0;
}

static void fio_isolane_iomem_free(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	isolane_memory_free(job->memory);
	job->memory = NULL;
}

static enum fio_q_status fio_isolane_queue(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;
	struct job_options *o = td->eo;
	isolane_request request = {
		.offset = io_u->offset,
		.length = io_u->xfer_buflen,
		.buffer = io_u->xfer_buf,
		.user_data = (uintptr_t)io_u,
	};

	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		request.operation = ISOLANE_OP_READ;
		break;
	case DDIR_WRITE:
		request.operation = ISOLANE_OP_WRITE;
		request.flags = o->durable ? ISOLANE_DURABLE : 0;
		break;
	case DDIR_TRIM:
		request.operation = ISOLANE_OP_DISCARD;
		break;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
		request.operation = ISOLANE_OP_FLUSH;
		break;
	default:
		io_u->error = EINVAL;
		return FIO_Q_COMPLETED;
	}
	if (isolane_queue_submit(job->queue, &request, 1) == 1)
		return FIO_Q_QUEUED;
	if (errno == EAGAIN)
		return FIO_Q_BUSY;
	io_u->error = report(td, "submit");
	td_verror(td, io_u->error, "isolane_queue_submit");
	return FIO_Q_COMPLETED;
}

/* Sends all requests that were queued since the last call together. */
static int fio_isolane_getevents(struct thread_data *td, unsigned int min, unsigned int max,
				 const struct timespec *t)
{
	struct job *job = td->io_ops_data;
	int64_t timeout = t ? t->tv_sec * 1000000000LL + t->tv_nsec : -1;
	int count = isolane_queue_wait(job->queue, job->done, max, min, timeout);

	return count < 0 ? -report(td, "wait") : count;
}

static struct io_u *fio_isolane_event(struct thread_data *td, int event)
{
	struct job *job = td->io_ops_data;
	isolane_completion *done = &job->done[event];
	struct io_u *io_u = (struct io_u *)(uintptr_t)done->user_data;

	io_u->error = done->error;
	if (done->error)
		log_err("fio: %s: %llu bytes at %llu: %s\n", td->o.name, (unsigned long long)io_u->xfer_buflen,
			(unsigned long long)io_u->offset, done->text);
	return io_u;
}

/* The volume is open already, and has no cache in this process. */
static int fio_isolane_nothing(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name = "isolane",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL,
	.setup = fio_isolane_setup,
	.init = fio_isolane_init,
	.cleanup = fio_isolane_cleanup,
	.iomem_alloc = fio_isolane_iomem_alloc,
	.iomem_free = fio_isolane_iomem_free,
	.queue = fio_isolane_queue,
	.getevents = fio_isolane_getevents,
	.event = fio_isolane_event,
	.open_file = fio_isolane_nothing,
	.close_file = fio_isolane_nothing,
	.invalidate = fio_isolane_nothing,
	.options = options,
	.option_struct_size = sizeof(struct job_options),
};
