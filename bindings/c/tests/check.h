/* What the tests in C share. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smolrun.h"

#define CHECK(what)                                                                                       \
    do {                                                                                                  \
        if (!(what)) {                                                                                    \
            fprintf(stderr, "%s:%d: %s\nlast error: %s\n", __FILE__, __LINE__, #what, smolrun_last_error()); \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

#define OK(call) CHECK((call) == SMOLRUN_OK)
#define FAILS(expected, call) CHECK((call) == (expected) && *smolrun_last_error() != '\0')

#define NUL SMOLRUN_NUL_TERMINATED

#endif
