/* Entry and exit of every call: the lock, the call log, misbehaviour on request, and handles. */
#define _GNU_SOURCE
#include "rig.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HANDLES 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct handle handles[HANDLES];
static size_t handle_count;
static int references;
static char log_path[PATH_MAX];
static bool log_named;

void locate_log(void)
{
    const char *named = getenv("RIG_NVML_CALLS");
    log_named = named != NULL && *named != '\0';
    if (log_named)
        snprintf(log_path, sizeof log_path, "%s", named);
    else
        beside_library("nvml.calls", log_path);
}

/* Opened for each line, so that a test may empty, move or delete the log at any time. */
static void log_call(const char *function, const struct target *target)
{
    char line[160];
    int length;
    int file = open(log_path, O_WRONLY | O_APPEND | O_CLOEXEC | (log_named ? O_CREAT : 0), 0644);
    unsigned int slot;
    if (file < 0)
        return;
    if (target == NULL || target->gpu == NULL)
        length = snprintf(line, sizeof line, "%s -\n", function);
    else if (target->instance != NULL && number32(target->instance, "slot", &slot))
        length = snprintf(line, sizeof line, "%s %u:%u\n", function, target->index, slot);
    else
        length = snprintf(line, sizeof line, "%s %u\n", function, target->index);
    if (write(file, line, (size_t)length) != length)
        refuse(log_path, "cannot be written");
    close(file);
}

void sleep_ms(u64 ms)
{
    struct timespec left = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0)
        ;
}

/* The nearest one counts: the instance's, then the GPU's, then the node's. An empty object {} is "behave". */
static cJSON *behaviour(const char *function, const struct target *target)
{
    static const struct target nothing = {0};
    const struct target *about = target == NULL ? &nothing : target;
    const cJSON *places[] = {about->instance, about->gpu, document()};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        cJSON *found = cJSON_GetObjectItemCaseSensitive(item(places[i], "calls"), function);
        if (found != NULL && !cJSON_IsNull(found))
            return found;
    }
    return NULL;
}

/* Counts the calls in valueint, which cJSON does not use for an object; a new document starts at zero again. */
static bool due(cJSON *asked)
{
    u64 skip = 0;
    u64 times = ULLONG_MAX;
    u64 seen = (u64)asked->valueint++;
    number(asked, "skip", &skip);
    number(asked, "times", &times);
    return seen >= skip && seen - skip < times;
}

static nvmlReturn_t misbehave(const char *function, struct target *target, find_target *find, const void *key)
{
    cJSON *asked = behaviour(function, target);
    u64 value = 0;
    if (asked == NULL || !due(asked))
        return NVML_SUCCESS;
    if (truth(asked, "crash"))
        abort();
    while (truth(asked, "hang_hard"))
        pause();
    while (asked != NULL && truth(asked, "hang")) {
        sleep_ms(50);
        reload();
        if (find != NULL)
            find(target, key);
        asked = behaviour(function, target);
    }
    if (number(asked, "delay_ms", &value))
        sleep_ms(value);
    return number(asked, "code", &value) ? (nvmlReturn_t)value : NVML_SUCCESS;
}

static bool missing(const char *function)
{
    const cJSON *name;
    cJSON_ArrayForEach(name, item(document(), "missing_symbols"))
    {
        if (strcmp(name->valuestring, function) == 0)
            return true;
    }
    return false;
}

nvmlReturn_t enter(const char *function, bool needs_init, struct target *target, find_target *find, const void *key)
{
    pthread_mutex_lock(&lock);
    reload();
    if (target != NULL)
        *target = (struct target){0};
    if (find != NULL)
        find(target, key);
    log_call(function, target);
    if (missing(function))
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (needs_init && references == 0)
        return NVML_ERROR_UNINITIALIZED;
    return misbehave(function, target, find, key);
}

nvmlReturn_t enter_system(const char *function)
{
    return enter(function, true, NULL, NULL, NULL);
}

static bool is_handle(const void *key)
{
    for (size_t i = 0; i < handle_count; i++)
        if (key == &handles[i])
            return true;
    return false;
}

static bool matches(const cJSON *instance, const struct handle *handle)
{
    unsigned int first = 0;
    unsigned int second = 0;
    if (handle->kind == HANDLE_MIG)
        return number32(instance, "slot", &first) && first == handle->first;
    if (!number32(instance, "gi", &first) || first != handle->first)
        return false;
    return handle->kind == HANDLE_GPU_INSTANCE || (number32(instance, "ci", &second) && second == handle->second);
}

static void find_by_handle(struct target *target, const void *key)
{
    const cJSON *entry;
    *target = (struct target){0};
    if (!is_handle(key))
        return;
    target->handle = key;
    cJSON_ArrayForEach(entry, item(document(), "devices"))
    {
        if (strcmp(text(entry, "uuid"), target->handle->uuid) == 0) {
            target->gpu = entry;
            break;
        }
        target->index++;
    }
    if (target->gpu == NULL || target->handle->kind == HANDLE_GPU)
        return;
    cJSON_ArrayForEach(entry, mig_instances(target->gpu))
    {
        if (matches(entry, target->handle)) {
            target->instance = entry;
            break;
        }
    }
}

static nvmlReturn_t usable(const struct target *target)
{
    if (target->handle == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* A GPU that was taken out of the document is one that fell off the bus. */
    if (target->gpu == NULL || truth(target->gpu, "lost"))
        return NVML_ERROR_GPU_IS_LOST;
    if (target->handle->kind != HANDLE_GPU && target->instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

nvmlReturn_t enter_device(const char *function, const void *handle, struct target *target)
{
    nvmlReturn_t answer = enter(function, true, target, find_by_handle, handle);
    if (answer == NVML_SUCCESS)
        answer = usable(target);
    if (answer == NVML_SUCCESS && target->handle->kind != HANDLE_GPU && target->handle->kind != HANDLE_MIG)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    return answer;
}

nvmlReturn_t enter_gpu(const char *function, const void *handle, struct target *target)
{
    nvmlReturn_t answer = enter_device(function, handle, target);
    return answer == NVML_SUCCESS && target->handle->kind == HANDLE_MIG ? NVML_ERROR_NOT_SUPPORTED : answer;
}

nvmlReturn_t enter_instance(const char *function, const void *handle, enum handle_kind kind, struct target *target)
{
    nvmlReturn_t answer = enter(function, true, target, find_by_handle, handle);
    if (answer == NVML_SUCCESS)
        answer = usable(target);
    return answer == NVML_SUCCESS && target->handle->kind != kind ? NVML_ERROR_INVALID_ARGUMENT : answer;
}

nvmlReturn_t leave(nvmlReturn_t answer)
{
    pthread_mutex_unlock(&lock);
    return answer;
}

/* The same thing always gets the same handle, and no handle is ever reused for another one. */
void *handle_for(enum handle_kind kind, const char *uuid, unsigned int first, unsigned int second)
{
    struct handle *handle;
    for (size_t i = 0; i < handle_count; i++) {
        handle = &handles[i];
        if (handle->kind == kind && handle->first == first && handle->second == second &&
            strcmp(handle->uuid, uuid) == 0)
            return handle;
    }
    if (handle_count == HANDLES)
        refuse("devices", "has changed so often that all handles are used up");
    handle = &handles[handle_count++];
    *handle = (struct handle){.kind = kind, .first = first, .second = second};
    snprintf(handle->uuid, sizeof handle->uuid, "%s", uuid);
    return handle;
}

int *init_references(void)
{
    return &references;
}
