/* Finds, reads and re-reads the JSON document, and takes values out of it. */
#define _GNU_SOURCE
#include "rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char library_path[PATH_MAX];
static char document_path[PATH_MAX];
static cJSON *current;
static struct stat loaded;

/* The directory alone is resolved, not the file: tests link one library into many directories. */
void beside_library(const char *name, char path[PATH_MAX])
{
    char directory[PATH_MAX];
    char *slash;
    snprintf(directory, sizeof directory, "%s", library_path);
    slash = strrchr(directory, '/');
    if (slash == NULL)
        snprintf(directory, sizeof directory, ".");
    else
        slash[1] = '\0';
    if (realpath(directory, path) == NULL)
        refuse(directory, strerror(errno));
    if (strlen(path) + strlen(name) + 2 > PATH_MAX)
        refuse(directory, "is too long a path");
    strcat(path, "/");
    strcat(path, name);
}

/* At load time, because a relative LD_LIBRARY_PATH means something else after the program has changed directory. */
__attribute__((constructor)) static void locate(void)
{
    const char *named = getenv("RIG_NVML_JSON");
    Dl_info info;
    if (dladdr(&current, &info) == 0 || info.dli_fname == NULL)
        refuse("", "cannot find where this library was loaded from");
    snprintf(library_path, sizeof library_path, "%s", info.dli_fname);
    if (named != NULL && *named != '\0')
        snprintf(document_path, sizeof document_path, "%s", named);
    else
        beside_library("nvml.json", document_path);
    locate_log();
}

void refuse(const char *where, const char *what)
{
    const char *gap = *where == '\0' ? "" : " ";
    fprintf(stderr, "stand-in libnvidia-ml.so.1: %s: %s%s%s\n", document_path, where, gap, what);
    abort();
}

bool exported(const char *function)
{
    void *self = dlopen(library_path, RTLD_NOW | RTLD_NOLOAD);
    bool found = self != NULL && strncmp(function, "nvml", 4) == 0 && dlsym(self, function) != NULL;
    if (self != NULL)
        dlclose(self);
    return found;
}

const cJSON *document(void)
{
    return current;
}

static bool unchanged(const struct stat *now)
{
    return now->st_ino == loaded.st_ino && now->st_size == loaded.st_size &&
           now->st_mtim.tv_sec == loaded.st_mtim.tv_sec && now->st_mtim.tv_nsec == loaded.st_mtim.tv_nsec;
}

void reload(void)
{
    struct stat now;
    size_t size = 0;
    ssize_t got = 0;
    char *bytes;
    cJSON *parsed;
    int file;
    if (stat(document_path, &now) != 0)
        refuse("", strerror(errno));
    if (current != NULL && unchanged(&now))
        return;
    file = open(document_path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &now) != 0)
        refuse("", strerror(errno));
    bytes = malloc((size_t)now.st_size + 1);
    while (bytes != NULL && size < (size_t)now.st_size &&
           (got = read(file, bytes + size, (size_t)now.st_size - size)) > 0)
        size += (size_t)got;
    close(file);
    if (bytes == NULL || got < 0)
        refuse("", strerror(errno));
    parsed = cJSON_ParseWithLength(bytes, size);
    free(bytes);
    if (parsed == NULL)
        refuse("", "is not JSON (write it beside and rename it, as node.write does)");
    check(parsed);
    cJSON_Delete(current);
    current = parsed;
    loaded = now;
}

const cJSON *item(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(value) ? NULL : value;
}

/* JSON numbers arrive as doubles. All ones is written as 18446744073709551615, which a double rounds up. */
u64 as_u64(double value)
{
    return value >= 18446744073709551615.0 ? ULLONG_MAX : (u64)value;
}

unsigned int as_u32(double value)
{
    return value >= 4294967295.0 ? UINT_MAX : (unsigned int)value;
}

bool number(const cJSON *object, const char *key, u64 *value)
{
    const cJSON *found = item(object, key);
    if (!cJSON_IsNumber(found))
        return false;
    *value = as_u64(found->valuedouble);
    return true;
}

bool number32(const cJSON *object, const char *key, unsigned int *value)
{
    const cJSON *found = item(object, key);
    if (!cJSON_IsNumber(found))
        return false;
    *value = as_u32(found->valuedouble);
    return true;
}

bool truth(const cJSON *object, const char *key)
{
    return cJSON_IsTrue(item(object, key));
}

const char *text(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(item(object, key));
}

nvmlReturn_t give_number(const cJSON *object, const char *key, unsigned int *out)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return number32(object, key, out) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t give_text(const char *value, char *out, unsigned int length)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (value == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(value) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}

bool mig_enabled(const cJSON *gpu)
{
    u64 mode = 0;
    return number(gpu, "mig_mode", &mode) && mode == NVML_DEVICE_MIG_ENABLE;
}

const cJSON *mig_instances(const cJSON *gpu)
{
    return mig_enabled(gpu) ? item(item(gpu, "mig"), "instances") : NULL;
}
