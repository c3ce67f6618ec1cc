/* The library itself, and how a caller gets at its GPUs. */
#include "rig.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static nvmlReturn_t initialise(const char *function)
{
    nvmlReturn_t answer = enter(function, false, NULL, NULL, NULL);
    const cJSON *init = item(document(), "init");
    u64 value = 0;
    if (answer == NVML_SUCCESS && number(init, "delay_ms", &value))
        sleep_ms(value);
    if (answer == NVML_SUCCESS && number(init, "code", &value))
        answer = (nvmlReturn_t)value;
    if (answer == NVML_SUCCESS)
        ++*init_references();
    return leave(answer);
}

nvmlReturn_t nvmlInit(void)
{
    return initialise(__func__);
}

nvmlReturn_t nvmlInit_v2(void)
{
    return initialise(__func__);
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags; /* whether a node without GPUs refuses is init.code's business */
    return initialise(__func__);
}

nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t answer = enter_system(__func__);
    if (answer == NVML_SUCCESS)
        --*init_references();
    return leave(answer);
}

/* Takes no lock and leaves no line in the log: it must work while another call hangs. */
const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const TEXTS[] = {
        [NVML_SUCCESS] = "Success",
        [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
        [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
        [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
        [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
        [NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
        [NVML_ERROR_NOT_FOUND] = "Not Found",
        [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
        [NVML_ERROR_INSUFFICIENT_POWER] = "Insufficient External Power",
        [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [NVML_ERROR_TIMEOUT] = "Timeout",
        [NVML_ERROR_IRQ_ISSUE] = "Interrupt Request Issue",
        [NVML_ERROR_LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
        [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
        [NVML_ERROR_CORRUPTED_INFOROM] = "Corrupted infoROM",
        [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
        [NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
        [NVML_ERROR_OPERATING_SYSTEM] = "The operating system has blocked the request",
        [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
        [NVML_ERROR_IN_USE] = "In use by another client",
        [NVML_ERROR_MEMORY] = "Insufficient Memory",
        [NVML_ERROR_NO_DATA] = "No data",
        [NVML_ERROR_VGPU_ECC_NOT_SUPPORTED] = "ECC is not supported with vGPU",
        [NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient resources",
        [NVML_ERROR_FREQ_NOT_SUPPORTED] = "Frequency not supported",
        [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
        [NVML_ERROR_DEPRECATED] = "Deprecated",
        [NVML_ERROR_NOT_READY] = "Not ready",
        [NVML_ERROR_GPU_NOT_FOUND] = "No GPUs were found",
        [NVML_ERROR_INVALID_STATE] = "Invalid state",
        [NVML_ERROR_RESET_TYPE_NOT_SUPPORTED] = "Reset type not supported",
    };
    if ((size_t)result < sizeof TEXTS / sizeof *TEXTS)
        return TEXTS[result];
    return result == NVML_ERROR_UNKNOWN ? "Unknown Error" : "Unknown error code";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    nvmlReturn_t answer = enter_system(__func__);
    if (answer == NVML_SUCCESS)
        answer = give_text(text(document(), "driver_version"), version, length);
    return leave(answer);
}

/* nvml.h lists no NVML_ERROR_UNINITIALIZED for this call and the CUDA version: both answer before init. */
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    nvmlReturn_t answer = enter(__func__, false, NULL, NULL, NULL);
    if (answer == NVML_SUCCESS)
        answer = give_text(text(document(), "nvml_version"), version, length);
    return leave(answer);
}

static nvmlReturn_t cuda_version(const char *function, int *version)
{
    nvmlReturn_t answer = enter(function, false, NULL, NULL, NULL);
    unsigned int value = 0;
    if (answer == NVML_SUCCESS && version == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS && number32(document(), "cuda_version", &value))
        *version = (int)value;
    return leave(answer);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
    return cuda_version(__func__, cudaDriverVersion);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
    return cuda_version(__func__, cudaDriverVersion);
}

/* The node's own value first; else it is on if it is on for any GPU, and unsupported if no GPU says. */
static const cJSON *confidential_state(void)
{
    const cJSON *state = item(document(), "confidential");
    const cJSON *gpu;
    if (state != NULL)
        return state;
    cJSON_ArrayForEach(gpu, item(document(), "devices"))
    {
        const cJSON *own = item(gpu, "confidential");
        if (state == NULL || (own != NULL && !cJSON_IsFalse(own)))
            state = own;
    }
    return state;
}

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state)
{
    nvmlReturn_t answer = enter_system(__func__);
    const cJSON *set = confidential_state();
    if (answer == NVML_SUCCESS && state == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && set == NULL)
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer != NVML_SUCCESS)
        return leave(answer);
    state->environment = cJSON_IsTrue(set) ? NVML_CC_SYSTEM_ENVIRONMENT_PROD : NVML_CC_SYSTEM_ENVIRONMENT_UNAVAILABLE;
    state->ccFeature = cJSON_IsTrue(set) ? NVML_CC_SYSTEM_FEATURE_ENABLED : NVML_CC_SYSTEM_FEATURE_DISABLED;
    state->devToolsMode = NVML_CC_SYSTEM_DEVTOOLS_MODE_OFF;
    if (cJSON_IsObject(set)) {
        number32(set, "environment", &state->environment);
        number32(set, "feature", &state->ccFeature);
        number32(set, "devtools", &state->devToolsMode);
    }
    return leave(answer);
}

static nvmlReturn_t device_count(const char *function, unsigned int *count)
{
    nvmlReturn_t answer = enter_system(function);
    if (answer == NVML_SUCCESS && count == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        *count = (unsigned int)cJSON_GetArraySize(item(document(), "devices"));
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
    return device_count(__func__, deviceCount);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    return device_count(__func__, deviceCount);
}

static void find_by_index(struct target *target, const void *key)
{
    const cJSON *devices = item(document(), "devices");
    target->index = *(const unsigned int *)key;
    target->gpu = target->index > INT_MAX ? NULL : cJSON_GetArrayItem(devices, (int)target->index);
}

static void find_by_uuid(struct target *target, const void *key)
{
    const cJSON *gpu;
    const cJSON *instance;
    *target = (struct target){0};
    if (key == NULL)
        return;
    cJSON_ArrayForEach(gpu, item(document(), "devices"))
    {
        target->gpu = gpu;
        if (strcmp(text(gpu, "uuid"), key) == 0)
            return;
        cJSON_ArrayForEach(instance, mig_instances(gpu))
        {
            const char *uuid = text(instance, "uuid");
            target->instance = instance;
            if (item(instance, "slot") != NULL && strcmp(uuid, key) == 0)
                return;
        }
        target->instance = NULL;
        target->index++;
    }
    *target = (struct target){0};
}

/* The formats of nvml.h: domain:bus:device.function, domain:bus:device, bus:device.function */
static bool parse_pci(const char *id, unsigned int part[4])
{
    char rest;
    int found;
    memset(part, 0, 4 * sizeof *part);
    if (id == NULL)
        return false;
    found = sscanf(id, "%x:%x:%x.%x%c", &part[0], &part[1], &part[2], &part[3], &rest);
    if (found == 4 || (found == 3 && strchr(id, '.') == NULL && isxdigit((unsigned char)id[strlen(id) - 1])))
        return true;
    part[0] = 0;
    return sscanf(id, "%x:%x.%x%c", &part[1], &part[2], &part[3], &rest) == 3;
}

static void find_by_pci(struct target *target, const void *key)
{
    unsigned int asked[4];
    unsigned int own[4];
    *target = (struct target){0};
    if (!parse_pci(key, asked))
        return;
    cJSON_ArrayForEach(target->gpu, item(document(), "devices"))
    {
        if (parse_pci(text(target->gpu, "pci"), own) && memcmp(asked, own, sizeof own) == 0)
            return;
        target->index++;
    }
}

static nvmlReturn_t give_handle(nvmlReturn_t answer, const struct target *target, nvmlReturn_t absent,
                                nvmlDevice_t *device)
{
    unsigned int slot = 0;
    if (answer == NVML_SUCCESS && device == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && target->gpu == NULL)
        answer = absent;
    else if (answer == NVML_SUCCESS && truth(target->gpu, "lost_handle"))
        answer = NVML_ERROR_GPU_IS_LOST;
    if (answer != NVML_SUCCESS)
        return leave(answer);
    if (target->instance != NULL && number32(target->instance, "slot", &slot))
        *device = handle_for(HANDLE_MIG, text(target->gpu, "uuid"), slot, 0);
    else
        *device = handle_for(HANDLE_GPU, text(target->gpu, "uuid"), 0, 0);
    return leave(answer);
}

static nvmlReturn_t by_index(const char *function, unsigned int index, nvmlDevice_t *device)
{
    struct target target;
    nvmlReturn_t answer = enter(function, true, &target, find_by_index, &index);
    return give_handle(answer, &target, NVML_ERROR_INVALID_ARGUMENT, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return by_index(__func__, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return by_index(__func__, index, device);
}

static nvmlReturn_t by_pci(const char *function, const char *id, nvmlDevice_t *device)
{
    unsigned int part[4];
    struct target target;
    nvmlReturn_t answer = enter(function, true, &target, find_by_pci, id);
    nvmlReturn_t absent = parse_pci(id, part) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
    return give_handle(answer, &target, absent, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
    return by_pci(__func__, pciBusId, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    return by_pci(__func__, pciBusId, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct target target;
    nvmlReturn_t answer = enter(__func__, true, &target, find_by_uuid, uuid);
    bool sane = uuid != NULL && (strncmp(uuid, "GPU-", 4) == 0 || strncmp(uuid, "MIG-", 4) == 0);
    return give_handle(answer, &target, sane ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT, device);
}
