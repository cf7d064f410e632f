/* Checks of the test programs. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isolane.h"

/* Exits with the location and the last error of the library unless the condition holds. */
#define CHECK(condition)                                                                                \
	do {                                                                                            \
		if (!(condition)) {                                                                     \
			fprintf(stderr, "%s:%d: failed: %s (errno %d, \"%s\")\n", __FILE__, __LINE__,   \
			        #condition, errno, isolane_error_text());                               \
			exit(1);                                                                        \
		}                                                                                       \
	} while (0)

/* Checks that `call` fails with this errno and a text that contains `part`. */
#define CHECK_FAILS(call, number, part)                                                                \
	do {                                                                                            \
		errno = 0;                                                                              \
		CHECK(!(call));                                                                         \
		CHECK(errno == (number));                                                               \
		CHECK(strstr(isolane_error_text(), (part)) != NULL);                                   \
	} while (0)

/* The same for a call that returns -1 on failure. */
#define CHECK_MINUS(call, number, part) CHECK_FAILS((call) != -1, number, part)

#endif
