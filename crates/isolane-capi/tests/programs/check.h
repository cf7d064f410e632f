/* What the test programs share. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isolane.h"

/* Ends the program if it is not so, and tells where, and what the library has said last. */
#define CHECK(condition)                                                                                \
	do {                                                                                            \
		if (!(condition)) {                                                                     \
			fprintf(stderr, "%s:%d: not so: %s (errno %d, \"%s\")\n", __FILE__, __LINE__,   \
			        #condition, errno, isolane_error_text());                               \
			exit(1);                                                                        \
		}                                                                                       \
	} while (0)

/* `call` has failed so, and has said something like that. */
#define CHECK_FAILS(call, number, words)                                                                \
	do {                                                                                            \
		errno = 0;                                                                              \
		CHECK(!(call));                                                                         \
		CHECK(errno == (number));                                                               \
		CHECK(strstr(isolane_error_text(), (words)) != NULL);                                   \
	} while (0)

/* Of what returns a number: -1 is the failure. */
#define CHECK_MINUS(call, number, words) CHECK_FAILS((call) != -1, number, words)

#endif
