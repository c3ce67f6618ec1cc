/* What the parts of the stand-in for libnvidia-ml.so.1 share. See README.md for the document that drives it. */
#ifndef RIG_NVML_H
#define RIG_NVML_H

/* The header renames nvmlInit to nvmlInit_v2 and so on. Both names are exported here, as a driver does. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

typedef unsigned long long u64;

enum handle_kind { HANDLE_GPU, HANDLE_MIG, HANDLE_GPU_INSTANCE, HANDLE_COMPUTE_INSTANCE };

/* Handles name things, they do not point into the document: the document may be replaced between two calls.
 * A MIG handle names a slot of its parent, so it shows the new instance after a repartition; nvml.h warns of
 * exactly that ("handles may be reused and their properties can change in the process"). */
struct handle {
    enum handle_kind kind;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE]; /* of the GPU */
    unsigned int first;                         /* MIG slot, or GPU instance id */
    unsigned int second;                        /* compute instance id */
};

/* What one call is about. Null pointers where the document has no such thing. */
struct target {
    const struct handle *handle;
    const cJSON *gpu;
    const cJSON *instance; /* the entry of mig.instances behind a MIG, GPU instance or compute instance handle */
    unsigned int index;    /* position of gpu in the document */
};

typedef void find_target(struct target *target, const void *key);

/* state.c: every exported function starts with one enter…() and ends with leave(), whatever enter…() answered;
 * between the two it holds the library's only lock. */
nvmlReturn_t enter(const char *function, bool needs_init, struct target *target, find_target *find, const void *key);
nvmlReturn_t enter_system(const char *function);
nvmlReturn_t enter_device(const char *function, const void *handle, struct target *target);
nvmlReturn_t enter_gpu(const char *function, const void *handle, struct target *target);
nvmlReturn_t enter_instance(const char *function, const void *handle, enum handle_kind kind, struct target *target);
nvmlReturn_t leave(nvmlReturn_t answer);
void *handle_for(enum handle_kind kind, const char *uuid, unsigned int first, unsigned int second);
int *init_references(void);
void locate_log(void);
void sleep_ms(u64 ms);

/* document.c: reading the current document */
const cJSON *document(void);
const cJSON *item(const cJSON *object, const char *key); /* null for an absent key and for a JSON null alike */
bool number(const cJSON *object, const char *key, u64 *value);
bool number32(const cJSON *object, const char *key, unsigned int *value);
bool truth(const cJSON *object, const char *key);
const char *text(const cJSON *object, const char *key);
u64 as_u64(double value);
unsigned int as_u32(double value);
nvmlReturn_t give_number(const cJSON *object, const char *key, unsigned int *out);
nvmlReturn_t give_text(const char *value, char *out, unsigned int length);
bool mig_enabled(const cJSON *gpu);
const cJSON *mig_instances(const cJSON *gpu);
void reload(void);
void beside_library(const char *name, char path[PATH_MAX]);
_Noreturn void refuse(const char *where, const char *what);

/* schema.c: ends the process with a message on the first thing it does not know */
void check(const cJSON *root);
bool exported(const char *function);

#endif
