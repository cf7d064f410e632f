/* dlopen.c - use libibverbs.so.1 and librdmacm.so.1 as programs do that open them.
 *
 * Standard input has lines of a library, a symbol, and a version that programs request. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what)
{
	printf("failed: %s\n", what);
	return 1;
}

int main(void)
{
	char library[64], symbol[64], version[64];
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL), *cm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
	int found = 0, devices = 0;

	if (!verbs || !cm)
		return fail(dlerror());
	while (scanf("%63s %63s %63s", library, symbol, version) == 3) {
		void *handle = strcmp(library, "libibverbs") ? cm : verbs, *exact = dlvsym(handle, symbol, version);

		if (!exact || exact != dlsym(handle, symbol))
			return fail(symbol);
		found++;
	}
	if (!found || dlvsym(verbs, "ibv_get_device_list", "IBVERBS_1.2") || dlvsym(verbs, "ibv_reg_mr_iova2", "IBVERBS_1.1") ||
	    dlvsym(cm, "rdma_create_id", "RDMACM_1.3") || dlvsym(verbs, "ibv_get_device_list", "IBVERBS_1.99"))
		return fail("a version that the symbol does not have");

	struct ibv_device **(*get_list)(int *) = dlvsym(verbs, "ibv_get_device_list", "IBVERBS_1.1");
	struct ibv_device **(*get_old_list)(int *) = dlvsym(verbs, "ibv_get_device_list", "IBVERBS_1.0");
	struct ibv_context *(*open_device)(struct ibv_device *) = dlvsym(verbs, "ibv_open_device", "IBVERBS_1.1");
	struct ibv_pd *(*alloc_pd)(struct ibv_context *) = dlvsym(verbs, "ibv_alloc_pd", "IBVERBS_1.1");
	struct ibv_context **(*cm_devices)(int *) = dlvsym(cm, "rdma_get_devices", "RDMACM_1.0");
	struct ibv_device **list = get_list(&devices);

	if (!list || devices < 1 || get_old_list(&devices))
		return fail("devices");
	if (!open_device(list[0]) || !alloc_pd(open_device(list[0])))
		return fail("a context");
	/* Both libraries have one state: the devices of the connection manager are of the same list. */
	struct ibv_context **contexts = cm_devices(&devices);
	if (!contexts || devices < 1 || contexts[0]->device != list[0] || !alloc_pd(contexts[0]))
		return fail("the devices of the connection manager");
	/* Functions of later releases than these headers. */
	void *(*alloc_handle)(struct ibv_context *, void *) = dlvsym(verbs, "ibv_alloc_dmah", "IBVERBS_1.15");
	int (*export_fd)(void *) = dlvsym(verbs, "ibv_dm_export_dmabuf_fd", "IBVERBS_1.16");
	int (*query_counters)(struct ibv_context *, void *) = dlvsym(verbs, "_ibv_query_comp_cntr_caps", "IBVERBS_1.18");
	if (!alloc_handle || alloc_handle(contexts[0], &devices) || errno != EOPNOTSUPP || !export_fd || export_fd(&devices) != -1 ||
	    errno != EOPNOTSUPP || !query_counters || query_counters(contexts[0], &devices) != EOPNOTSUPP)
		return fail("a function that is not supported");
	printf("%d symbols, %d devices\n", found, devices);
	return 0;
}
