/* fabric.c - edge cases of the provider of libfabric: two endpoints in one process, wrong arguments, waits, and ends. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: %s\n", __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)
#define MS 10000

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fi_info *info;

struct end {
	struct fid_ep *ep;
	struct fid_cq *cq;
};

/* Opens an endpoint whose requests and receives are counted, if there are counters. */
static struct end open_counted(struct fi_info *of, struct fid_cntr *sends, struct fid_cntr *receives)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD };
	struct end end;
	EXPECT(!fi_endpoint(domain, of, &end.ep, NULL));
	EXPECT(fi_enable(end.ep) == -FI_ENOEQ);
	EXPECT(!fi_ep_bind(end.ep, &eq->fid, 0));
	EXPECT(fi_enable(end.ep) == -FI_ENOCQ);
	EXPECT(!fi_cq_open(domain, &attr, &end.cq, NULL));
	EXPECT(fi_ep_bind(end.ep, &end.cq->fid, 0) < 0);
	if (sends) {
		EXPECT(fi_ep_bind(end.ep, &sends->fid, FI_REMOTE_WRITE) == -FI_ENOSYS);
		EXPECT(fi_ep_bind(end.ep, &sends->fid, FI_MULTI_RECV) == -FI_EBADFLAGS);
		EXPECT(fi_ep_bind(end.ep, &sends->fid, 0) == -FI_EINVAL);
		EXPECT(!fi_ep_bind(end.ep, &sends->fid, FI_SEND | FI_WRITE | FI_READ));
		EXPECT(fi_ep_bind(end.ep, &receives->fid, FI_RECV | FI_READ) == -FI_EINVAL);
		EXPECT(!fi_ep_bind(end.ep, &receives->fid, FI_RECV));
		EXPECT(fi_close(&sends->fid) == -FI_EBUSY);
	}
	EXPECT(!fi_ep_bind(end.ep, &end.cq->fid, FI_TRANSMIT | FI_RECV));
	EXPECT(fi_send(end.ep, "x", 1, NULL, 0, NULL) == -FI_EOPBADSTATE);
	EXPECT(!fi_enable(end.ep));
	EXPECT(fi_enable(end.ep) < 0);
	EXPECT(fi_tsend(end.ep, "x", 1, NULL, 0, 0, NULL) == -FI_ENOSYS);
	return end;
}

static struct end open_end(struct fi_info *of)
{
	return open_counted(of, NULL, NULL);
}

static ssize_t wait_event(uint32_t expected, const char *data, struct fi_info **of, fid_t *fid)
{
	char buffer[sizeof(struct fi_eq_cm_entry) + 300];
	struct fi_eq_cm_entry *entry = (void *) buffer;
	uint32_t event;
	ssize_t len = fi_eq_sread(eq, &event, buffer, sizeof buffer, MS, 0);
	if (len < 0)
		return len;
	EXPECT(event == expected);
	len -= sizeof *entry;
	EXPECT((size_t) len == strlen(data) && !memcmp(entry->data, data, len));
	if (of)
		*of = entry->info;
	if (fid)
		*fid = entry->fid;
	return 0;
}

/* Waits with the descriptor, as an event loop does. */
static struct fi_cq_data_entry wait_completion(struct fid_cq *cq)
{
	struct fi_cq_data_entry entry;
	struct fid *fids[] = { &cq->fid };
	struct pollfd pollfd = { .events = POLLIN };
	ssize_t read;
	EXPECT(!fi_control(&cq->fid, FI_GETWAIT, &pollfd.fd));
	while ((read = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
		int busy = fi_trywait(fabric, fids, 1);
		EXPECT(!busy || busy == -FI_EAGAIN);
		EXPECT(busy || poll(&pollfd, 1, MS) == 1);
	}
	EXPECT(read == 1);
	return entry;
}

static int wait_error(struct fid_cq *cq)
{
	struct fi_cq_data_entry entry;
	struct fi_cq_err_entry error = { 0 };
	ssize_t read;
	while ((read = fi_cq_sread(cq, &entry, 1, NULL, MS)) == 1)
		;
	EXPECT(read == -FI_EAVAIL);
	EXPECT(fi_cq_read(cq, &entry, 1) == -FI_EAVAIL);
	EXPECT(fi_cq_readerr(cq, &error, 0) == 1);
	EXPECT(fi_cq_strerror(cq, error.prov_errno, NULL, NULL, 0));
	return error.err;
}

static struct fid_pep *listen_at(struct sockaddr_storage *name)
{
	struct fid_pep *pep;
	size_t len = 1;
	EXPECT(!fi_passive_ep(fabric, info, &pep, NULL));
	EXPECT(fi_listen(pep) == -FI_ENOEQ);
	EXPECT(!fi_pep_bind(pep, &eq->fid, 0));
	EXPECT(!fi_listen(pep));
	EXPECT(fi_listen(pep) < 0);
	EXPECT(fi_getname(&pep->fid, name, &len) == -FI_ETOOSMALL && len > 1);
	EXPECT(!fi_getname(&pep->fid, name, &len));
	return pep;
}

static void close_end(struct end end)
{
	EXPECT(fi_close(&end.cq->fid) == -FI_EBUSY);
	EXPECT(!fi_close(&end.ep->fid));
	EXPECT(!fi_close(&end.cq->fid));
}

static void rejects(struct fid_pep *pep, void *name)
{
	struct end end = open_end(info);
	struct fi_info *request;
	struct fi_eq_err_entry error = { 0 };
	char data[256] = "", reason[16];
	EXPECT(fi_connect(end.ep, name, data, sizeof data) == -FI_EINVAL);
	EXPECT(fi_connect(end.ep, NULL, NULL, 0) == -FI_EINVAL);
	EXPECT(!fi_connect(end.ep, name, "hello", 5));
	EXPECT(fi_connect(end.ep, name, "hello", 5) == -FI_EISCONN);
	EXPECT(!wait_event(FI_CONNREQ, "hello", &request, NULL));
	EXPECT(!fi_reject(pep, request->handle, "no", 2));
	EXPECT(fi_reject(pep, request->handle, "no", 2) < 0);
	fi_freeinfo(request);
	EXPECT(wait_event(FI_CONNECTED, "", NULL, NULL) == -FI_EAVAIL);
	error.err_data = reason;
	error.err_data_size = sizeof reason;
	EXPECT(fi_eq_readerr(eq, &error, 0) == sizeof error);
	EXPECT(error.err == FI_ECONNREFUSED && error.fid == &end.ep->fid);
	EXPECT(error.err_data_size == 2 && !memcmp(reason, "no", 2));
	close_end(end);
}

static void refused(void)
{
	struct end end = open_end(info);
	struct sockaddr_storage name;
	struct fi_eq_err_entry error = { 0 };
	struct fid_pep *pep = listen_at(&name);
	EXPECT(!fi_close(&pep->fid));
	EXPECT(!fi_connect(end.ep, &name, NULL, 0));
	EXPECT(wait_event(FI_CONNECTED, "", NULL, NULL) == -FI_EAVAIL);
	EXPECT(fi_eq_readerr(eq, &error, 0) > 0 && error.err == FI_ECONNREFUSED);
	close_end(end);
}

static void connect_end(void *name, struct end *near, struct end *far)
{
	struct fi_info *request;
	fid_t one, other;
EXPECT(!fi_connect(near->ep, name, "hello", 5));
	EXPECT(!wait_event(FI_CONNREQ, "hello", &request, NULL));
	*far = open_end(request);
	fi_freeinfo(request);
	EXPECT(!fi_accept(far->ep, "welcome", 7));
	/* The end that connects is first: the other one waits for its confirmation. */
	EXPECT(!wait_event(FI_CONNECTED, "welcome", NULL, &one) && one == &near->ep->fid);
	EXPECT(!wait_event(FI_CONNECTED, "", NULL, &other) && other == &far->ep->fid);
}

static void connected(void *name, struct end *near, struct end *far)
{
	*near = open_end(info);
	connect_end(name, near, far);
}

static void moves_data(struct end near, struct end far)
{
	static char source[1 << 20], target[1 << 20];
	struct fi_cq_data_entry entry;
	struct fid_mr *mr, *second;
	memset(source, 7, sizeof source);
	EXPECT(fi_inject(near.ep, source, 1 << 16, 0) == -FI_EMSGSIZE);
	EXPECT(!fi_recv(far.ep, target, sizeof target, NULL, 0, &mr));
	EXPECT(!fi_senddata(near.ep, source, sizeof source, NULL, 0x12345678, 0, &second));
	entry = wait_completion(far.cq);
	EXPECT(entry.op_context == &mr && entry.len == sizeof source && entry.data == 0x12345678);
	EXPECT(entry.flags == (FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA) && target[sizeof target - 1] == 7);
	entry = wait_completion(near.cq);
	EXPECT(entry.op_context == &second && entry.flags == (FI_SEND | FI_MSG));

	EXPECT(fi_mr_reg(domain, target, 0, FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL) < 0);
	EXPECT(fi_mr_reg(domain, target, 64, FI_REMOTE_WRITE, 0, 1ULL << 40, 0, &mr, NULL) == -FI_ENOKEY);
	EXPECT(!fi_mr_reg(domain, target, 4096, FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	EXPECT(fi_mr_reg(domain, target, 64, FI_REMOTE_WRITE, 0, 0, 0, &second, NULL) == -FI_ENOKEY);
	target[4095] = 0;
	EXPECT(!fi_write(near.ep, source, 4096, NULL, 0, 0, fi_mr_key(mr), NULL));
	EXPECT(wait_completion(near.cq).flags == (FI_WRITE | FI_RMA) && target[4095] == 7);
	/* A WRITE with immediate data needs no receive, and has no context. */
	EXPECT(!fi_writedata(near.ep, source, 64, NULL, 9, 0, 0, fi_mr_key(mr), NULL));
	entry = wait_completion(far.cq);
	EXPECT(!entry.op_context && entry.len == 64 && entry.data == 9);
	EXPECT(entry.flags == (FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA));
	EXPECT(wait_completion(near.cq).flags == (FI_WRITE | FI_RMA));
	/* The region does not allow it. */
	EXPECT(!fi_read(near.ep, source, 4096, NULL, 0, 0, fi_mr_key(mr), NULL));
	EXPECT(wait_error(near.cq) == FI_EACCES);
	EXPECT(!fi_close(&mr->fid));
}

static void refuses_flags(struct end end)
{
	struct iovec range = { "x", 1 };
	struct fi_rma_iov remote = { 0, 1, 0 };
	struct fi_msg message = { .msg_iov = &range, .iov_count = 1 };
	struct fi_msg_rma rma = { .msg_iov = &range, .iov_count = 1, .rma_iov = &remote, .rma_iov_count = 1 };
	struct fid_mr *mr;
	EXPECT(fi_recvmsg(end.ep, &message, FI_MULTI_RECV) == -FI_EBADFLAGS);
	EXPECT(fi_sendmsg(end.ep, &message, 1ULL << 47) == -FI_EBADFLAGS);
	EXPECT(fi_writemsg(end.ep, &rma, 1ULL << 47) == -FI_EBADFLAGS);
	EXPECT(fi_readmsg(end.ep, &rma, 1ULL << 47) == -FI_EBADFLAGS);
	EXPECT(fi_mr_reg(domain, range.iov_base, 1, FI_SEND, 0, 0, FI_RMA_EVENT, &mr, NULL) == -FI_EBADFLAGS);
	EXPECT(fi_sendmsg(end.ep, NULL, 0) == -FI_EINVAL && fi_recvmsg(end.ep, NULL, 0) == -FI_EINVAL);
	message.iov_count = SIZE_MAX;
	EXPECT(fi_sendmsg(end.ep, &message, 0) == -FI_EINVAL && fi_recvmsg(end.ep, &message, 0) == -FI_EINVAL);
}

/* Counts operations, also those without a completion, and wakes a program that waits. */
static void counts(void *name)
{
	struct fi_cntr_attr attr = { .wait_obj = FI_WAIT_FD };
	struct fid_cntr *sends, *receives, *plain;
	struct fid *fids[1];
	struct pollfd pollfd = { .events = POLLIN };
	struct end near, far;
	char bytes[4];
	int at, result;

	attr.events = FI_CNTR_EVENTS_COMP + 9;
	EXPECT(fi_cntr_open(domain, &attr, &sends, NULL) == -FI_ENOSYS);
	attr.events = FI_CNTR_EVENTS_COMP;
	attr.flags = 1;
	EXPECT(fi_cntr_open(domain, &attr, &sends, NULL) == -FI_EINVAL);
	attr.flags = 0;
	EXPECT(!fi_cntr_open(domain, &attr, &sends, NULL) && !fi_cntr_open(domain, NULL, &receives, NULL));
	attr.wait_obj = FI_WAIT_NONE;
	EXPECT(!fi_cntr_open(domain, &attr, &plain, NULL));
	EXPECT(fi_cntr_wait(plain, 0, 0) == -FI_ENOSYS);
	EXPECT(fi_control(&plain->fid, FI_GETWAIT, &pollfd.fd) < 0 && !fi_close(&plain->fid));

	EXPECT(fi_cntr_wait(sends, 1, 1) == -FI_ETIMEDOUT && !fi_cntr_wait(sends, 0, 1));
	EXPECT(!fi_cntr_set(sends, 5) && !fi_cntr_add(sends, 2) && fi_cntr_read(sends) == 7);
	EXPECT(!fi_cntr_seterr(sends, 5) && !fi_cntr_adderr(sends, 2) && fi_cntr_readerr(sends) == 7);
	EXPECT(!fi_cntr_wait(sends, 7, 0) && !fi_cntr_set(sends, 0) && !fi_cntr_seterr(sends, 0));

	near = open_counted(info, sends, receives);
	connect_end(name, &near, &far);
	for (at = 0; at < 3; at++)
		EXPECT(!fi_recv(far.ep, bytes, sizeof bytes, NULL, 0, NULL));
	EXPECT(fi_cntr_read(sends) == 0);
	fids[0] = &sends->fid;
	EXPECT(!fi_control(&sends->fid, FI_GETWAIT, &pollfd.fd) && !fi_trywait(fabric, fids, 1));
	EXPECT(!fi_inject(near.ep, "x", 1, 0));
	EXPECT(poll(&pollfd, 1, MS) == 1 && fi_trywait(fabric, fids, 1) == -FI_EAGAIN);
	EXPECT(!fi_send(near.ep, "y", 1, NULL, 0, NULL) && !fi_inject(near.ep, "z", 1, 0));
	EXPECT(!fi_cntr_wait(sends, 3, MS) && fi_cntr_read(sends) == 3 && !fi_cntr_readerr(sends));
	EXPECT(wait_completion(near.cq).flags == (FI_SEND | FI_MSG));
	EXPECT(fi_cq_read(near.cq, bytes, 1) == -FI_EAGAIN);

	EXPECT(!fi_recv(near.ep, bytes, sizeof bytes, NULL, 0, NULL));
	EXPECT(!fi_inject(far.ep, "x", 1, 0) && !fi_cntr_wait(receives, 1, MS));
	/* An error ends the wait, if it is not counted before. */
	EXPECT(!fi_recv(near.ep, bytes, sizeof bytes, NULL, 0, NULL) && !fi_shutdown(far.ep, 0));
	while ((result = fi_cntr_wait(receives, 2, 10)) == -FI_ETIMEDOUT && !fi_cntr_readerr(receives))
		;
	EXPECT(result == -FI_EAVAIL || result == -FI_ETIMEDOUT);
	EXPECT(fi_cntr_readerr(receives) == 1 && fi_cntr_read(receives) == 1);
	EXPECT(!fi_cntr_readerr(sends));
	close_end(near);
	close_end(far);
	EXPECT(!fi_close(&sends->fid) && !fi_close(&receives->fid));
}

/* Cancels receives that the peer cannot use. */
static void cancels(void)
{
	struct fi_rx_attr attr = { .size = 16 };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD };
	struct fi_cq_err_entry error = { 0 };
	struct end end = open_end(info);
	struct fid_ep *shared;
	struct fid_cq *cq;
	char bytes[4];
	int one, other;

	EXPECT(!fi_recv(end.ep, bytes, sizeof bytes, NULL, 0, &one));
	EXPECT(!fi_recv(end.ep, bytes, sizeof bytes, NULL, 0, &other));
	EXPECT(!fi_cancel(&end.ep->fid, &one) && !fi_cancel(&end.ep->fid, &one) && !fi_cancel(&end.ep->fid, NULL));
	EXPECT(fi_cq_sread(end.cq, bytes, 1, NULL, MS) == -FI_EAVAIL && fi_cq_readerr(end.cq, &error, 0) == 1);
	EXPECT(error.err == FI_ECANCELED && error.op_context == &one && error.flags & FI_RECV);
	EXPECT(fi_cq_readerr(end.cq, &error, 0) == -FI_EAGAIN);
	close_end(end);

	EXPECT(!fi_srx_context(domain, &attr, &shared, NULL) && !fi_cq_open(domain, &cq_attr, &cq, NULL));
	EXPECT(!fi_recv(shared, bytes, sizeof bytes, NULL, 0, &one));
	EXPECT(fi_cancel(&shared->fid, &one) == -FI_ENOCQ);
	EXPECT(fi_ep_bind(shared, &cq->fid, FI_TRANSMIT) == -FI_EINVAL && !fi_ep_bind(shared, &cq->fid, FI_RECV));
	EXPECT(fi_ep_bind(shared, &cq->fid, FI_RECV) == -FI_EINVAL && fi_close(&cq->fid) == -FI_EBUSY);
	EXPECT(!fi_cancel(&shared->fid, &one) && fi_cq_read(cq, bytes, 1) == -FI_EAVAIL);
	EXPECT(fi_cq_readerr(cq, &error, 0) == 1 && error.op_context == &one && error.err == FI_ECANCELED);
	EXPECT(!fi_close(&shared->fid) && !fi_close(&cq->fid));
}

int main(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_FD };
	struct sockaddr_storage name;
	struct fid_pep *pep;
	struct end near, far;
	fid_t fid;
	char byte;

	hints->ep_attr->type = FI_EP_MSG;
	hints->fabric_attr->prov_name = strdup("isolane");
	hints->caps = FI_ATOMIC;
	EXPECT(fi_getinfo(fi_version(), "127.0.0.1", "0", FI_SOURCE, hints, &info) == -FI_ENODATA);
	hints->caps = FI_MSG | FI_RMA;
	hints->tx_attr->inject_size = 1 << 20;
	EXPECT(fi_getinfo(fi_version(), "127.0.0.1", "0", FI_SOURCE, hints, &info) == -FI_ENODATA);
	hints->tx_attr->inject_size = 0;
	EXPECT(!fi_getinfo(fi_version(), "127.0.0.1", "0", FI_SOURCE, hints, &info));
	EXPECT(!strcmp(info->fabric_attr->prov_name, "isolane") && !info->domain_attr->mr_mode);
	EXPECT(!fi_fabric(info->fabric_attr, &fabric, NULL));
	EXPECT(!fi_eq_open(fabric, &eq_attr, &eq, NULL));
	EXPECT(!fi_domain(fabric, info, &domain, NULL));

	pep = listen_at(&name);
	rejects(pep, &name);
	refused();
	connected(&name, &near, &far);
	refuses_flags(near);
	moves_data(near, far);
	close_end(near);
	close_end(far);

	counts(&name);
	cancels();

	/* The end of a peer is reported after its data, once. */
	connected(&name, &near, &far);
	EXPECT(!fi_recv(far.ep, &byte, 1, NULL, 0, NULL));
	EXPECT(!fi_recv(far.ep, &byte, 1, NULL, 0, NULL));
	EXPECT(!fi_send(near.ep, "x", 1, NULL, 0, NULL));
	wait_completion(near.cq);
	close_end(near);
	EXPECT(!wait_event(FI_SHUTDOWN, "", NULL, &fid) && fid == &far.ep->fid);
	EXPECT(wait_completion(far.cq).len == 1 && byte == 'x');
	EXPECT(wait_error(far.cq) == FI_ECANCELED);
	EXPECT(fi_eq_read(eq, &(uint32_t) { 0 }, &name, sizeof name, 0) == -FI_EAGAIN);
	close_end(far);

	/* Closing an endpoint keeps completions that the program has not read. */
	connected(&name, &near, &far);
	EXPECT(!fi_recv(far.ep, &byte, 1, NULL, 0, &byte) && !fi_send(near.ep, "y", 1, NULL, 0, NULL));
	wait_completion(near.cq);
	close_end(near);
	EXPECT(!wait_event(FI_SHUTDOWN, "", NULL, NULL) && !fi_close(&far.ep->fid));
	EXPECT(wait_completion(far.cq).op_context == &byte && byte == 'y');
	EXPECT(fi_cq_read(far.cq, &name, 1) == -FI_EAGAIN && !fi_close(&far.cq->fid));

	EXPECT(fi_close(&domain->fid) == 0);
	EXPECT(fi_close(&eq->fid) == -FI_EBUSY && fi_close(&fabric->fid) == -FI_EBUSY);
	EXPECT(!fi_close(&pep->fid) && !fi_close(&eq->fid) && !fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return 0;
}
