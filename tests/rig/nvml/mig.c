/* MIG: mode, MIG device handles, GPU instances and compute instances. */
#include "rig.h"

#include <stdio.h>
#include <string.h>

/* nvml.h: a changed mode may wait for a reset; until then current and pending differ. */
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS && pendingMode == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        answer = give_number(target.gpu, "mig_mode", currentMode);
    if (answer == NVML_SUCCESS && !number32(target.gpu, "pending_mig_mode", pendingMode))
        *pendingMode = *currentMode;
    return leave(answer);
}

/* nvml.h: "Returns zero if MIG is not supported or enabled." */
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS && count == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS) {
        *count = 0;
        if (mig_enabled(target.gpu))
            number32(item(target.gpu, "mig"), "max", count);
    }
    return leave(answer);
}

static bool slot_filled(const cJSON *gpu, unsigned int slot)
{
    const cJSON *instance;
    unsigned int own;
    cJSON_ArrayForEach(instance, mig_instances(gpu))
    {
        if (number32(instance, "slot", &own) && own == slot)
            return true;
    }
    return false;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
    struct target target;
    unsigned int max = 0;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS && migDevice == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && !mig_enabled(target.gpu))
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer != NVML_SUCCESS)
        return leave(answer);
    number32(item(target.gpu, "mig"), "max", &max);
    if (index >= max)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (!slot_filled(target.gpu, index))
        answer = NVML_ERROR_NOT_FOUND;
    else
        *migDevice = handle_for(HANDLE_MIG, target.handle->uuid, index, 0);
    return leave(answer);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
    struct target target;
    nvmlReturn_t answer = enter_device(__func__, device, &target);
    if (answer == NVML_SUCCESS && isMigDevice == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        *isMigDevice = target.handle->kind == HANDLE_MIG;
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
    struct target target;
    nvmlReturn_t answer = enter_instance(__func__, migDevice, HANDLE_MIG, &target);
    if (answer == NVML_SUCCESS && device == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        *device = handle_for(HANDLE_GPU, target.handle->uuid, 0, 0);
    return leave(answer);
}

static nvmlReturn_t instance_number(const char *function, nvmlDevice_t device, const char *key, unsigned int *id)
{
    struct target target;
    nvmlReturn_t answer = enter_instance(function, device, HANDLE_MIG, &target);
    if (answer == NVML_SUCCESS)
        answer = give_number(target.instance, key, id);
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    return instance_number(__func__, device, "gi", id);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    return instance_number(__func__, device, "ci", id);
}

static nvmlReturn_t attributes(const char *function, nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    struct target target;
    u64 bytes = 0;
    nvmlReturn_t answer = enter_device(function, device, &target);
    const cJSON *instance = target.instance;
    if (answer == NVML_SUCCESS && out == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS &&
             (item(instance, "gpu_slices") == NULL || item(instance, "compute_slices") == NULL))
        answer = NVML_ERROR_NOT_SUPPORTED; /* a whole GPU too: the call is for MIG devices */
    if (answer != NVML_SUCCESS)
        return leave(answer);
    *out = (nvmlDeviceAttributes_t){0};
    number32(instance, "multiprocessors", &out->multiprocessorCount);
    number32(instance, "copy_engines", &out->sharedCopyEngineCount);
    number32(instance, "decoders", &out->sharedDecoderCount);
    number32(instance, "encoders", &out->sharedEncoderCount);
    number32(instance, "jpeg", &out->sharedJpegCount);
    number32(instance, "ofa", &out->sharedOfaCount);
    number32(instance, "gpu_slices", &out->gpuInstanceSliceCount);
    number32(instance, "compute_slices", &out->computeInstanceSliceCount);
    number(item(instance, "memory"), "total", &bytes);
    out->memorySizeMB = bytes >> 20;
    number(instance, "memory_mb", &out->memorySizeMB);
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    return attributes(__func__, device, out);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    return attributes(__func__, device, out);
}

/* The entry of mig.profiles whose `key` is `value`. */
static nvmlReturn_t profile(const struct target *target, const char *key, unsigned int value, const cJSON **found)
{
    const cJSON *entry;
    unsigned int own = 0;
    cJSON_ArrayForEach(entry, item(item(target->gpu, "mig"), "profiles"))
    {
        *found = entry;
        if (number32(entry, key, &own) && own == value)
            return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

#define COPY_PROFILE(out, given)                                      \
    do {                                                              \
        number32(given, "id", &(out)->id);                            \
        number32(given, "slices", &(out)->sliceCount);                \
        number32(given, "instances", &(out)->instanceCount);          \
        number32(given, "multiprocessors", &(out)->multiprocessorCount); \
        number32(given, "copy_engines", &(out)->copyEngineCount);     \
        number32(given, "decoders", &(out)->decoderCount);            \
        number32(given, "encoders", &(out)->encoderCount);            \
        number32(given, "jpeg", &(out)->jpegCount);                   \
        number32(given, "ofa", &(out)->ofaCount);                     \
        number(given, "memory_mb", &(out)->memorySizeMB);             \
    } while (0)

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int which,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    struct target target;
    const cJSON *given = NULL;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS && (info == NULL || which >= NVML_GPU_INSTANCE_PROFILE_COUNT))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        answer = profile(&target, "profile", which, &given);
    if (answer == NVML_SUCCESS) {
        *info = (nvmlGpuInstanceProfileInfo_t){.isP2pSupported = truth(given, "p2p")};
        COPY_PROFILE(info, given);
    }
    return leave(answer);
}

/* One pointer type for two structs: the version that the caller wrote says which one is behind it. */
static nvmlReturn_t give_profile(const cJSON *given, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    if (info->version == nvmlGpuInstanceProfileInfo_v2) {
        *info = (nvmlGpuInstanceProfileInfo_v2_t){.version = info->version, .isP2pSupported = truth(given, "p2p")};
        snprintf(info->name, sizeof info->name, "MIG %s", text(given, "name"));
        COPY_PROFILE(info, given);
    } else {
        nvmlGpuInstanceProfileInfo_v3_t wide = {.version = info->version};
        snprintf(wide.name, sizeof wide.name, "MIG %s", text(given, "name"));
        COPY_PROFILE(&wide, given);
        wide.capabilities = truth(given, "p2p") ? NVML_GPU_INSTANCE_PROFILE_CAPS_P2P : 0;
        number32(given, "capabilities", &wide.capabilities);
        memcpy((void *)info, &wide, sizeof wide);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t versioned_profile(const char *function, nvmlDevice_t device, const char *key, unsigned int which,
                                      nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct target target;
    const cJSON *given = NULL;
    nvmlReturn_t answer = enter_gpu(function, device, &target);
    bool by_enum = strcmp(key, "profile") == 0;
    if (answer == NVML_SUCCESS && (info == NULL || (by_enum && which >= NVML_GPU_INSTANCE_PROFILE_COUNT) ||
                                   (info->version != nvmlGpuInstanceProfileInfo_v2 &&
                                    info->version != nvmlGpuInstanceProfileInfo_v3)))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        answer = profile(&target, key, which, &given);
    if (answer == NVML_SUCCESS)
        answer = give_profile(given, info);
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int which,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    return versioned_profile(__func__, device, "profile", which, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int which,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info)
{
    return versioned_profile(__func__, device, "id", which, info);
}

/* enter_gpu() for the calls that want MIG mode on. */
static nvmlReturn_t enter_mig_gpu(const char *function, nvmlDevice_t device, const void *out, struct target *target)
{
    nvmlReturn_t answer = enter_gpu(function, device, target);
    if (answer == NVML_SUCCESS && out == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    return answer == NVML_SUCCESS && !mig_enabled(target->gpu) ? NVML_ERROR_NOT_SUPPORTED : answer;
}

/* Several compute instances of one GPU instance are several entries with one gi: the first stands for it. */
static bool first_of_its_gi(const cJSON *gpu, const cJSON *instance)
{
    const cJSON *other;
    unsigned int own = 0;
    unsigned int gi = 0;
    number32(instance, "gi", &gi);
    cJSON_ArrayForEach(other, mig_instances(gpu))
    {
        if (number32(other, "gi", &own) && own == gi)
            return other == instance;
    }
    return false;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId,
                                       nvmlGpuInstance_t *gpuInstances, unsigned int *count)
{
    struct target target;
    const cJSON *instance;
    unsigned int own = 0;
    unsigned int gi = 0;
    nvmlReturn_t answer = enter_mig_gpu(__func__, device, gpuInstances == NULL ? NULL : count, &target);
    if (answer != NVML_SUCCESS)
        return leave(answer);
    *count = 0;
    cJSON_ArrayForEach(instance, mig_instances(target.gpu))
    {
        if (number32(instance, "gi_profile", &own) && own == profileId && number32(instance, "gi", &gi) &&
            first_of_its_gi(target.gpu, instance))
            gpuInstances[(*count)++] =
                handle_for(HANDLE_GPU_INSTANCE, target.handle->uuid, gi, 0);
    }
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance)
{
    struct target target;
    const cJSON *instance;
    unsigned int own = 0;
    nvmlReturn_t answer = enter_mig_gpu(__func__, device, gpuInstance, &target);
    if (answer != NVML_SUCCESS)
        return leave(answer);
    answer = NVML_ERROR_NOT_FOUND;
    cJSON_ArrayForEach(instance, mig_instances(target.gpu))
    {
        if (number32(instance, "gi", &own) && own == id) {
            *gpuInstance = handle_for(HANDLE_GPU_INSTANCE, target.handle->uuid, id, 0);
            answer = NVML_SUCCESS;
        }
    }
    return leave(answer);
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
    struct target target;
    nvmlReturn_t answer = enter_instance(__func__, gpuInstance, HANDLE_GPU_INSTANCE, &target);
    const cJSON *placement = item(target.instance, "placement");
    if (answer == NVML_SUCCESS && info == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && (placement == NULL || item(target.instance, "gi_profile") == NULL))
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer != NVML_SUCCESS)
        return leave(answer);
    *info = (nvmlGpuInstanceInfo_t){.id = target.handle->first};
    info->device = handle_for(HANDLE_GPU, target.handle->uuid, 0, 0);
    number32(target.instance, "gi_profile", &info->profileId);
    number32(placement, "start", &info->placement.start);
    number32(placement, "size", &info->placement.size);
    return leave(answer);
}

static nvmlComputeInstance_t compute_handle(const struct target *target, unsigned int ci)
{
    const struct handle *parent = target->handle;
    return handle_for(HANDLE_COMPUTE_INSTANCE, parent->uuid, parent->first, ci);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                nvmlComputeInstance_t *computeInstances, unsigned int *count)
{
    struct target target;
    const cJSON *entry;
    unsigned int gi = 0;
    unsigned int ci = 0;
    unsigned int own = 0;
    nvmlReturn_t answer = enter_instance(__func__, gpuInstance, HANDLE_GPU_INSTANCE, &target);
    if (answer == NVML_SUCCESS && (computeInstances == NULL || count == NULL))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer != NVML_SUCCESS)
        return leave(answer);
    *count = 0;
    cJSON_ArrayForEach(entry, mig_instances(target.gpu))
    {
        if (number32(entry, "gi", &gi) && gi == target.handle->first && number32(entry, "ci", &ci) &&
            number32(entry, "ci_profile", &own) && own == profileId)
            computeInstances[(*count)++] = compute_handle(&target, ci);
    }
    return leave(answer);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
                                                   nvmlComputeInstance_t *computeInstance)
{
    struct target target;
    const cJSON *entry;
    unsigned int gi = 0;
    unsigned int ci = 0;
    nvmlReturn_t answer = enter_instance(__func__, gpuInstance, HANDLE_GPU_INSTANCE, &target);
    if (answer == NVML_SUCCESS && computeInstance == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer != NVML_SUCCESS)
        return leave(answer);
    answer = NVML_ERROR_NOT_FOUND;
    cJSON_ArrayForEach(entry, mig_instances(target.gpu))
    {
        if (number32(entry, "gi", &gi) && gi == target.handle->first && number32(entry, "ci", &ci) && ci == id) {
            *computeInstance = compute_handle(&target, ci);
            answer = NVML_SUCCESS;
        }
    }
    return leave(answer);
}

static nvmlReturn_t compute_instance(const char *function, nvmlComputeInstance_t handle,
                                     nvmlComputeInstanceInfo_t *info, bool placed)
{
    struct target target;
    nvmlReturn_t answer = enter_instance(function, handle, HANDLE_COMPUTE_INSTANCE, &target);
    const cJSON *placement = item(target.instance, "ci_placement");
    nvmlComputeInstanceInfo_t full = {0};
    if (answer == NVML_SUCCESS && info == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && (item(target.instance, "ci_profile") == NULL || (placed && placement == NULL)))
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer != NVML_SUCCESS)
        return leave(answer);
    full.device = handle_for(HANDLE_GPU, target.handle->uuid, 0, 0);
    full.gpuInstance =
        handle_for(HANDLE_GPU_INSTANCE, target.handle->uuid, target.handle->first, 0);
    full.id = target.handle->second;
    number32(target.instance, "ci_profile", &full.profileId);
    number32(placement, "start", &full.placement.start);
    number32(placement, "size", &full.placement.size);
    /* The first version of the struct ends before the placement. */
    memcpy(info, &full, placed ? sizeof full : offsetof(nvmlComputeInstanceInfo_t, placement));
    return leave(answer);
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
    return compute_instance(__func__, computeInstance, info, false);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
    return compute_instance(__func__, computeInstance, info, true);
}
