/* The process lists in their three shapes, and per-process utilization. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

/* A list given as "permission" or {"code": N} fails; an absent list is an empty one; null is NOT_SUPPORTED. */
static nvmlReturn_t open_list(const cJSON *gpu, const char *key, const cJSON **rows)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(gpu, key);
    u64 code = NVML_ERROR_NOT_SUPPORTED;
    *rows = NULL;
    if (list == NULL)
        return NVML_SUCCESS;
    if (cJSON_IsString(list))
        return NVML_ERROR_NO_PERMISSION;
    if (cJSON_IsArray(list)) {
        *rows = list;
        return NVML_SUCCESS;
    }
    number(list, "code", &code);
    return (nvmlReturn_t)code;
}

struct rows {
    nvmlProcessDetail_v1_t *row; /* the widest of the shapes */
    unsigned int count;
};

static bool belongs(const cJSON *row, const cJSON *instance)
{
    unsigned int own[2] = {0, 0};
    unsigned int wanted[2] = {1, 1};
    if (instance == NULL)
        return true;
    return number32(row, "gi", &own[0]) && number32(row, "ci", &own[1]) && number32(instance, "gi", &wanted[0]) &&
           number32(instance, "ci", &wanted[1]) && own[0] == wanted[0] && own[1] == wanted[1];
}

/* Not available is all ones, in every field but the pid. */
static void add_row(struct rows *rows, const cJSON *row)
{
    nvmlProcessDetail_v1_t *out;
    rows->row = realloc(rows->row, (rows->count + 1) * sizeof *rows->row);
    if (rows->row == NULL)
        refuse("", "does not fit into memory");
    out = &rows->row[rows->count++];
    memset(out, 0xff, sizeof *out);
    number32(row, "pid", &out->pid);
    number32(row, "gi", &out->gpuInstanceId);
    number32(row, "ci", &out->computeInstanceId);
    number(row, "memory", &out->usedGpuMemory);
    /* Without confidential computing there is none, rather than an unknown amount. */
    if (cJSON_GetObjectItemCaseSensitive(row, "protected_memory") == NULL)
        out->usedGpuCcProtectedMemory = 0;
    number(row, "protected_memory", &out->usedGpuCcProtectedMemory);
}

static nvmlReturn_t collect(const struct target *target, const char *key, struct rows *rows)
{
    const cJSON *list;
    const cJSON *row;
    nvmlReturn_t answer = open_list(target->gpu, key, &list);
    cJSON_ArrayForEach(row, list)
    {
        if (belongs(row, target->instance))
            add_row(rows, row);
    }
    return answer;
}

/* nvml.h: "Querying per-instance information using MIG device handles is not supported if the device is in vGPU
 * Host virtualization mode." */
static bool host_vgpu_instance(const struct target *target)
{
    unsigned int mode = 0;
    number32(target->gpu, "virtualization", &mode);
    return target->instance != NULL && mode == NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU;
}

static nvmlReturn_t fit(unsigned int needed, unsigned int *count, const void *out)
{
    unsigned int room = *count;
    if (room > 0 && out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = needed;
    return room < needed ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list(const char *function, nvmlDevice_t device, const char *key, unsigned int *count,
                         const void *out, struct rows *rows)
{
    struct target target;
    nvmlReturn_t answer = enter_device(function, device, &target);
    if (answer == NVML_SUCCESS && count == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && host_vgpu_instance(&target))
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer == NVML_SUCCESS)
        answer = collect(&target, key, rows);
    if (answer == NVML_SUCCESS)
        answer = fit(rows->count, count, out);
    return answer;
}

static void copy_v1(nvmlProcessInfo_v1_t *out, const nvmlProcessDetail_v1_t *row)
{
    *out = (nvmlProcessInfo_v1_t){.pid = row->pid, .usedGpuMemory = row->usedGpuMemory};
}

/* The _v2 and the _v3 symbol share one layout. */
static void copy_v2(nvmlProcessInfo_v2_t *out, const nvmlProcessDetail_v1_t *row)
{
    *out = (nvmlProcessInfo_v2_t){
        .pid = row->pid,
        .usedGpuMemory = row->usedGpuMemory,
        .gpuInstanceId = row->gpuInstanceId,
        .computeInstanceId = row->computeInstanceId,
    };
}

#define LIST(function, key, shape, copy)                                                     \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *infoCount, shape *infos)        \
    {                                                                                        \
        struct rows rows = {0};                                                              \
        nvmlReturn_t answer = list(__func__, device, key, infoCount, infos, &rows);          \
        for (unsigned int i = 0; answer == NVML_SUCCESS && i < rows.count; i++)              \
            copy(&infos[i], &rows.row[i]);                                                   \
        free(rows.row);                                                                      \
        return leave(answer);                                                                \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, "compute", nvmlProcessInfo_v1_t, copy_v1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, "compute", nvmlProcessInfo_v2_t, copy_v2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, "compute", nvmlProcessInfo_t, copy_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, "graphics", nvmlProcessInfo_v1_t, copy_v1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics", nvmlProcessInfo_v2_t, copy_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics", nvmlProcessInfo_t, copy_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, "mps", nvmlProcessInfo_v1_t, copy_v1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps", nvmlProcessInfo_v2_t, copy_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps", nvmlProcessInfo_t, copy_v2)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
    static const char *const KEYS[] = {
        [NVML_PROCESS_MODE_COMPUTE] = "compute",
        [NVML_PROCESS_MODE_GRAPHICS] = "graphics",
        [NVML_PROCESS_MODE_MPS] = "mps",
    };
    struct rows rows = {0};
    struct target target;
    nvmlReturn_t answer = enter_device(__func__, device, &target);
    if (answer == NVML_SUCCESS &&
        (plist == NULL || plist->version != nvmlProcessDetailList_v1 || plist->mode >= NVML_PROCESS_MODE_MAX))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && host_vgpu_instance(&target))
        answer = NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int mode = 0; answer == NVML_SUCCESS && mode < NVML_PROCESS_MODE_ALL; mode++)
        if (plist->mode == NVML_PROCESS_MODE_ALL || plist->mode == mode)
            answer = collect(&target, KEYS[mode], &rows);
    if (answer == NVML_SUCCESS)
        answer = fit(rows.count, &plist->numProcArrayEntries, plist->procArray);
    if (answer == NVML_SUCCESS && rows.count > 0)
        memcpy(plist->procArray, rows.row, rows.count * sizeof *rows.row);
    free(rows.row);
    return leave(answer);
}

/* The samples newer than the caller's stamp, the next one at a time. */
static const cJSON *next_sample(const cJSON *sample, u64 since)
{
    u64 stamp = 0;
    while (sample != NULL && (!number(sample, "timestamp", &stamp) || stamp <= since))
        sample = sample->next;
    return sample;
}

/* After enter_gpu(): the first sample, and how many there are. On MIG it is unsupported, and none is NOT_FOUND.
 * A list given as {"code": 0} is the driver that answers the sizing call with success and nothing. */
static nvmlReturn_t open_samples(const cJSON *gpu, u64 since, const cJSON **first, unsigned int *count)
{
    const cJSON *list = NULL;
    nvmlReturn_t answer = mig_enabled(gpu) ? NVML_ERROR_NOT_SUPPORTED : open_list(gpu, "process_utilization", &list);
    *first = next_sample(list == NULL ? NULL : list->child, since);
    *count = 0;
    for (const cJSON *sample = *first; sample != NULL; sample = next_sample(sample->next, since))
        ++*count;
    if (answer == NVML_SUCCESS && *count == 0 && !cJSON_IsObject(item(gpu, "process_utilization")))
        answer = NVML_ERROR_NOT_FOUND;
    return answer;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                             unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
    struct target target;
    const cJSON *sample = NULL;
    unsigned int found = 0;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS && processSamplesCount == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        answer = open_samples(target.gpu, lastSeenTimeStamp, &sample, &found);
    /* Sizing is a null buffer here, whatever the count says. */
    if (answer == NVML_SUCCESS && utilization == NULL)
        *processSamplesCount = 0;
    if (answer == NVML_SUCCESS)
        answer = fit(found, processSamplesCount, utilization);
    for (; answer == NVML_SUCCESS && sample != NULL; sample = next_sample(sample->next, lastSeenTimeStamp)) {
        *utilization = (nvmlProcessUtilizationSample_t){0};
        number32(sample, "pid", &utilization->pid);
        number(sample, "timestamp", &utilization->timeStamp);
        number32(sample, "sm", &utilization->smUtil);
        number32(sample, "mem", &utilization->memUtil);
        number32(sample, "enc", &utilization->encUtil);
        number32(sample, "dec", &utilization->decUtil);
        utilization++;
    }
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
    struct target target;
    const cJSON *sample = NULL;
    unsigned int found = 0;
    u64 since = 0;
    nvmlProcessUtilizationInfo_v1_t *out = NULL;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS && procesesUtilInfo == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && procesesUtilInfo->version != nvmlProcessesUtilizationInfo_v1)
        answer = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (answer == NVML_SUCCESS) {
        since = procesesUtilInfo->lastSeenTimeStamp;
        out = procesesUtilInfo->procUtilArray;
        answer = open_samples(target.gpu, since, &sample, &found);
    }
    if (answer == NVML_SUCCESS && out == NULL)
        procesesUtilInfo->processSamplesCount = 0;
    if (answer == NVML_SUCCESS)
        answer = fit(found, &procesesUtilInfo->processSamplesCount, out);
    for (; answer == NVML_SUCCESS && sample != NULL; sample = next_sample(sample->next, since)) {
        *out = (nvmlProcessUtilizationInfo_v1_t){0};
        number32(sample, "pid", &out->pid);
        number(sample, "timestamp", &out->timeStamp);
        number32(sample, "sm", &out->smUtil);
        number32(sample, "mem", &out->memUtil);
        number32(sample, "enc", &out->encUtil);
        number32(sample, "dec", &out->decUtil);
        number32(sample, "jpg", &out->jpgUtil);
        number32(sample, "ofa", &out->ofaUtil);
        out++;
    }
    return leave(answer);
}
