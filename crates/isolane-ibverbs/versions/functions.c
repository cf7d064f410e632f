/* Targets of the versioned symbols that the static library does not define (symbols.txt). The names of these functions
 * are not exported. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

int isolane_error(void) { return errno = EOPNOTSUPP; }

/* A long, because some of these functions return a size or an offset. */
long isolane_minus_one(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

void *isolane_null(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

char isolane_data;

/* Programs use this private function, so each private version has it. */
int ibv_query_gid_type(void *context, uint8_t port, unsigned int index, int *type);
int isolane_ibv_query_gid_type(void *context, uint8_t port, unsigned int index, int *type)
{
	return ibv_query_gid_type(context, port, index, type);
}
